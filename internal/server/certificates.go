package server

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// certificateService is the CertificateService.
//
// The key of a certificate is sealed in an object of its own, so no answer, event or watch can contain it. Plans do not
// have certificates, because no plan may hold a key. Those that the cluster makes belong to control/certificates.
type certificateService struct {
	v1.UnsafeCertificateServiceServer
	*collection[*v1.Certificate]
}

func newCertificates(s *Server) *collection[*v1.Certificate] {
	c := newCollection[*v1.Certificate](s, state.KindCertificate)
	c.frozen = func(old *v1.Certificate) error {
		if old.GetSpec().GetSource() == spec.TLSOwn {
			return nil
		}
		return core.Refuse(codes.FailedPrecondition, "certificate %s is made by the cluster for the routes of %s, and leaves with the last of them; change spec.tls of these routes instead",
			old.GetMetadata().GetName(), strings.Join(old.GetSpec().GetHosts(), ", "))
	}
	c.remove = func(ctx context.Context, tx *transaction, old *v1.Certificate) *v1.Certificate {
		tx.batch.Delete(state.KindCertificateKey, old.GetMetadata().GetUid())
		return c.removePlain(ctx, tx, old)
	}
	return c
}

// keyedCertificate is a request that brings a certificate with its key.
type keyedCertificate interface {
	keyedRequest
	GetCertificate() *v1.Certificate
	GetKey() []byte
}

func (s *certificateService) CreateCertificate(ctx context.Context, request *v1.CreateCertificateRequest) (*v1.Certificate, error) {
	made, _, err := s.add(ctx, s.declared.Create.Name, request, func(tx *transaction, b *certificateBuilder) (*v1.Certificate, string, error) {
		if old := s.stored(tx.base, b.wanted()); old != nil {
			return nil, "", s.exists(old)
		}
		return s.build(ctx, tx, b)
	})
	return made, err
}

func (s *certificateService) ApplyCertificate(ctx context.Context, request *v1.ApplyCertificateRequest) (*v1.ApplyCertificateResponse, error) {
	made, result, err := s.add(ctx, s.declared.Apply.Name, request, func(tx *transaction, b *certificateBuilder) (*v1.Certificate, string, error) {
		return s.build(ctx, tx, b)
	})
	if err != nil {
		return nil, err
	}
	return &v1.ApplyCertificateResponse{Certificate: made, Result: result}, nil
}

// add checks a certificate with its key and lets f write it, once for each idempotency key.
func (s *certificateService) add(ctx context.Context, method string, request keyedCertificate, f func(*transaction, *certificateBuilder) (*v1.Certificate, string, error)) (*v1.Certificate, string, error) {
	receipt, err := core.NewReceipt(ctx, method, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, "", err
	}
	given := request.GetCertificate()
	pair, err := spec.ParseKeyPair(given.GetSpec().GetChain(), request.GetKey(), s.Now())
	if err != nil {
		return nil, "", err
	}
	m := given.GetMetadata()
	b := &certificateBuilder{Server: s.Server, pair: pair, object: &v1.Certificate{
		ApiVersion: spec.APIVersion, Kind: s.declared.Name,
		Metadata: &v1.Metadata{
			Namespace: orDefault(m.GetNamespace()), Name: m.GetName(), Labels: m.GetLabels(), Annotations: m.GetAnnotations(), Version: m.GetVersion(),
		},
		Spec: &v1.CertificateSpec{Source: spec.TLSOwn, Hosts: pair.Hosts, Chain: pair.Chain},
	}}
	return s.once(ctx, receipt, func(tx *transaction) (*v1.Certificate, string, error) { return f(tx, b) })
}

func (s *certificateService) DeleteCertificate(ctx context.Context, request *v1.DeleteCertificateRequest) (*v1.Certificate, error) {
	namespace := orDefault(request.GetNamespace())
	return s.change(ctx, func(tx *transaction) (*v1.Certificate, error) {
		if old := s.find(tx.base, namespace, request.GetName()); old != nil {
			if err := s.frozen(old); err != nil {
				return nil, err
			}
			if users := usersOf(tx.base, old); len(users) > 0 {
				return nil, core.Refuse(codes.FailedPrecondition, "certificate %s is used by %s: give them another certificate or tls mode first, or remove them with: %s",
					request.GetName(), spec.Count(len(users), "route")+" "+strings.Join(users, ", "), spec.Hint(namespace, "cloudless route rm "+strings.Join(users, " ")))
			}
		}
		return s.deleteIn(ctx, tx, namespace, request.GetName(), request.GetVersion())
	})
}

// usersOf are the names of the routes that use an own certificate.
func usersOf(snap *state.Snapshot, c *v1.Certificate) []string {
	var users []string
	for r := range snap.Routes(c.GetMetadata().GetNamespace(), "") {
		if tls := r.GetSpec().GetTls(); tls.GetMode() == spec.TLSOwn && tls.GetCertificate() == c.GetMetadata().GetName() {
			users = append(users, r.GetMetadata().GetName())
		}
	}
	return users
}

func (s *certificateService) GetCertificate(ctx context.Context, request *v1.GetCertificateRequest) (*v1.Certificate, error) {
	return s.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *certificateService) ListCertificates(ctx context.Context, request *v1.ListCertificatesRequest) (*v1.ListCertificatesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Certificate]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListCertificatesResponse{Items: items, Next: next}, nil
}

func (s *certificateService) WatchCertificates(request *v1.WatchCertificatesRequest, stream grpc.ServerStreamingServer[v1.CertificateChange]) error {
	return s.watch(stream.Context(), selection[*v1.Certificate]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	}, func(change string, o *v1.Certificate) error {
		return stream.Send(&v1.CertificateChange{Change: change, Certificate: o})
	})
}

// certificateBuilder writes a certificate with its sealed key.
type certificateBuilder struct {
	*Server
	object *v1.Certificate
	pair   *spec.KeyPair
}

func (b *certificateBuilder) wanted() *v1.Certificate { return b.object }

func (b *certificateBuilder) create(ctx context.Context, tx *transaction) (*v1.Certificate, error) {
	made := proto.CloneOf(b.object)
	made.Metadata.Uid, made.Metadata.Version = state.NewUID(), 0
	b.describeIt(made, 1)
	sealed, err := b.seal(made)
	if err != nil {
		return nil, err
	}
	tx.batch.Create(made)
	tx.batch.Create(&statev1.CertificateKey{Metadata: &v1.Metadata{Uid: made.GetMetadata().GetUid()}, Sealed: sealed})
	tx.batch.Create(b.Event(ctx, made, "Created", certificateSummary(made)))
	return made, nil
}

func (b *certificateBuilder) update(ctx context.Context, tx *transaction, old *v1.Certificate) (*v1.Certificate, error) {
	key := tx.base.CertificateKey(old.GetMetadata().GetUid())
	sameKey := b.hasKey(key)
	if sameKey && len(spec.DiffObject(old, b.object)) == 0 {
		return old, nil
	}
	now := proto.CloneOf(old)
	now.Spec = proto.CloneOf(b.object.GetSpec())
	now.Metadata.Labels, now.Metadata.Annotations = b.object.GetMetadata().GetLabels(), b.object.GetMetadata().GetAnnotations()
	version := old.GetStatus().GetKeyVersion()
	if !sameKey {
		version++
		sealed, err := b.seal(now)
		if err != nil {
			return nil, err
		}
		tx.batch.Put(&statev1.CertificateKey{Metadata: proto.CloneOf(key.GetMetadata()), Sealed: sealed})
	}
	b.describeIt(now, version)
	tx.batch.Update(now, old.GetMetadata().GetVersion())
	tx.batch.Create(b.Event(ctx, now, "Updated", certificateSummary(now)))
	return now, nil
}

// describe is never asked: plans have no certificates.
func (b *certificateBuilder) describe(*transaction, *v1.Certificate, *v1.Certificate, *v1.PlanChange) {
}

func (b *certificateBuilder) describeIt(c *v1.Certificate, keyVersion uint64) {
	c.Status = spec.DescribeCertificate(b.pair.Leaf, b.Now())
	c.Status.KeyVersion = keyVersion
	c.Status.Problem = spec.ExpiryWarning(c, b.Now())
}

func (b *certificateBuilder) seal(c *v1.Certificate) ([]byte, error) {
	return b.sealer.Seal(b.pair.Key, state.CertificateKeyContext(c.GetMetadata().GetUid()))
}

// hasKey reports whether a stored key is the one of the request.
func (b *certificateBuilder) hasKey(stored *statev1.CertificateKey) bool {
	key, err := b.sealer.Unseal(stored.GetSealed(), state.CertificateKeyContext(stored.GetMetadata().GetUid()))
	return err == nil && bytes.Equal(key, b.pair.Key)
}

func certificateSummary(c *v1.Certificate) string {
	return fmt.Sprintf("for %s by %s until %s", strings.Join(c.GetSpec().GetHosts(), ", "), c.GetStatus().GetIssuer(), c.GetStatus().GetNotAfter().AsTime().Format(time.DateOnly))
}
