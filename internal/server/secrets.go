package server

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// secretService is the SecretService.
//
// A value is an object of its own, encrypted, so no answer, event, watch or plan can contain it. What becomes of values
// afterwards is up to control/secrets, and who gets them up to the sessions.
type secretService struct {
	v1.UnsafeSecretServiceServer
	*collection[*v1.Secret]
}

func newSecrets(s *Server) *collection[*v1.Secret] {
	c := newCollection[*v1.Secret](s, state.KindSecret)
	c.present = s.presentSecret
	c.remove = func(ctx context.Context, tx *transaction, old *v1.Secret) *v1.Secret {
		// Receipts may be many: control/secrets deletes them little by little.
		for value := range tx.base.SecretValuesOf(old.GetMetadata().GetUid()) {
			tx.batch.Delete(state.KindSecretValue, value.GetMetadata().GetUid())
		}
		return c.removePlain(ctx, tx, old)
	}
	c.followed.touched = touchedSecrets
	return c
}

// SetSecret writes the spec, another version, or both.
func (s *secretService) SetSecret(ctx context.Context, request *v1.SetSecretRequest) (*v1.Secret, error) {
	if ttl := request.GetSpec().GetTtl(); ttl != "" {
		if d, err := spec.ParseDuration(ttl); err == nil && d == 0 {
			return nil, &spec.Error{Violations: []spec.Violation{{Field: "spec.ttl", Message: "must be more than 0; leave it out for a secret without end"}}}
		}
	}
	return s.set(ctx, &settingSecret{
		method: v1.SecretService_SetSecret_FullMethodName, namespace: orDefault(request.GetNamespace()), name: request.GetName(), request: withoutValue(request),
		value: request.Value, spec: request.GetSpec(), labels: request.GetLabels(), ifVersion: request.IfVersion, reason: "Set",
	})
}

// RotateSecret adds a version with a random value.
func (s *secretService) RotateSecret(ctx context.Context, request *v1.RotateSecretRequest) (*v1.Secret, error) {
	value := secret.Random(int(request.GetLength()))
	defer clear(value)
	return s.set(ctx, &settingSecret{
		method: v1.SecretService_RotateSecret_FullMethodName, namespace: orDefault(request.GetNamespace()), name: request.GetName(), request: request,
		value: value, random: true, reason: "Rotated",
	})
}

// withoutValue is a request of which the state may keep a hash: that of a short value could be guessed.
func withoutValue(request *v1.SetSecretRequest) *v1.SetSecretRequest {
	without := &v1.SetSecretRequest{
		Namespace: request.GetNamespace(), Name: request.GetName(), Spec: request.GetSpec(), Labels: request.GetLabels(), IfVersion: request.IfVersion,
		IdempotencyKey: request.GetIdempotencyKey(),
	}
	if request.Value != nil {
		without.Value = []byte{}
	}
	return without
}

// settingSecret is one change of a secret.
type settingSecret struct {
	method          string
	namespace, name string
	request         keyedRequest
	value           []byte // nil keeps the current version
	random          bool   // the secret must exist, and a repeated call has another value
	spec            *v1.SecretSpec
	labels          map[string]string
	ifVersion       *uint64
	reason          string
}

func (s *secretService) set(ctx context.Context, c *settingSecret) (*v1.Secret, error) {
	receipt, err := core.NewReceipt(ctx, c.method, c.request.GetIdempotencyKey(), c.request)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, func(tx *transaction) (*v1.Secret, error) {
		done, err := receipt.Find(tx.base)
		if err != nil {
			return nil, err
		}
		if done != nil {
			return s.repeatedSet(tx, c, done.GetObjectUid(), done.GetMetadata().GetAnnotations()[core.ResultOf])
		}
		old := s.find(tx.base, c.namespace, c.name)
		if err := c.allowed(s.collection, tx, old); err != nil {
			return nil, err
		}
		now, err := s.writeSecret(ctx, tx, c, old)
		if err != nil || now == old {
			return now, err
		}
		action := spec.ActionUpdate
		if old == nil {
			action = spec.ActionCreate
		}
		if err = s.mayWrite(ctx, action, now); err == nil { // the guard knows only that the caller may do one of both
			receipt.Keep(tx.batch, now.GetMetadata().GetUid(), strconv.FormatUint(now.GetStatus().GetVersion(), 10))
		}
		return now, err
	})
}

// allowed refuses a change that is not possible now.
func (c *settingSecret) allowed(all *collection[*v1.Secret], tx *transaction, old *v1.Secret) error {
	number := old.GetStatus().GetVersion()
	switch {
	case c.ifVersion != nil && *c.ifVersion == 0 && old != nil:
		return all.exists(old)
	case c.ifVersion != nil && *c.ifVersion != number:
		return core.Refuse(codes.Aborted, "secret %s is at version %d and not %d: someone else has set it; look at it with: %s",
			c.name, number, *c.ifVersion, spec.Hint(c.namespace, "cloudless secret get "+c.name))
	case old == nil && c.random:
		return all.missing(tx.base, c.namespace, c.name)
	case old == nil && c.value == nil:
		return core.Refuse(codes.FailedPrecondition, "secret %s does not exist in namespace %s: give it a value with: %s",
			c.name, c.namespace, spec.Hint(c.namespace, "cloudless secret set "+c.name))
	}
	return nil
}

// repeatedSet answers a call that was made before. Its value must be that of the version it made, if that is still there.
func (s *secretService) repeatedSet(tx *transaction, c *settingSecret, uid, version string) (*v1.Secret, error) {
	number, _ := strconv.ParseUint(version, 10, 64)
	if stored := tx.base.SecretValue(secret.ValueUID(uid, number)); stored != nil && c.value != nil && !c.random {
		value, err := secret.Open(s.sealer, stored)
		if err != nil {
			return nil, err
		}
		same := subtle.ConstantTimeCompare(value, c.value) == 1
		if clear(value); !same {
			return nil, core.ErrOtherRequest
		}
	}
	return s.repeated(tx.base, uid), nil
}

// writeSecret adds the changed secret to a transaction, and its new value if there is one.
func (s *secretService) writeSecret(ctx context.Context, tx *transaction, c *settingSecret, old *v1.Secret) (*v1.Secret, error) {
	now := proto.CloneOf(old)
	if old == nil {
		now = &v1.Secret{
			ApiVersion: spec.APIVersion, Kind: s.declared.Name,
			Metadata: &v1.Metadata{Uid: state.NewUID(), Name: c.name, Namespace: c.namespace}, Spec: &v1.SecretSpec{}, Status: &v1.SecretStatus{},
		}
	}
	if c.spec != nil {
		now.Spec = spec.NormalSecret(c.spec)
	}
	if len(c.labels) > 0 {
		now.Metadata.Labels = c.labels
	}
	if c.value != nil {
		if err := s.addVersion(ctx, tx, now, c.value); err != nil {
			return nil, err
		}
	} else {
		limitVersion(now)
	}
	switch {
	case old == nil:
		tx.batch.Create(now)
		tx.batch.Create(s.Event(ctx, now, "Created", versionText(now)))
	case proto.Equal(old, now):
		return old, nil
	default:
		tx.batch.Update(now, old.GetMetadata().GetVersion())
		if c.value != nil {
			tx.batch.Create(s.Event(ctx, now, c.reason, versionText(now)))
		} else {
			tx.batch.Create(s.Event(ctx, now, "Updated", secretSummary(now)))
		}
	}
	return now, nil
}

// addVersion makes a value the current version of a secret.
func (s *secretService) addVersion(ctx context.Context, tx *transaction, now *v1.Secret, value []byte) error {
	status := now.GetStatus()
	status.Version++
	sealed, err := secret.Seal(s.sealer, now.GetMetadata().GetUid(), status.GetVersion(), value)
	if err != nil {
		return err
	}
	status.Versions = slices.Insert(status.GetVersions(), 0, &v1.SecretVersion{
		Number: status.GetVersion(), CreateTime: timestamppb.New(s.Now()), Author: core.Caller(ctx).ID.String(), Size: int64(len(value)),
	})
	limitVersion(now)
	if len(status.GetVersions()) > secret.KeptVersions {
		status.Versions = status.GetVersions()[:secret.KeptVersions]
	}
	tx.batch.Create(sealed)
	return nil
}

// limitVersion gives the current version the lifetime that the spec says.
func limitVersion(s *v1.Secret) {
	current := secret.VersionOf(s, s.GetStatus().GetVersion())
	if current == nil {
		return
	}
	current.ExpireTime = nil
	if ttl, err := spec.ParseDuration(s.GetSpec().GetTtl()); err == nil && ttl > 0 {
		current.ExpireTime = timestamppb.New(current.GetCreateTime().AsTime().Add(ttl))
	}
}

func versionText(s *v1.Secret) string {
	text := fmt.Sprintf("version %d", s.GetStatus().GetVersion())
	if v := secret.VersionOf(s, s.GetStatus().GetVersion()); v.GetExpireTime() != nil {
		text += " until " + v.GetExpireTime().AsTime().Format("2006-01-02 15:04 UTC")
	}
	return text
}

func secretSummary(s *v1.Secret) string {
	text := "for every workload of the namespace"
	if audience := s.GetSpec().GetAudience(); len(audience) > 0 {
		text = "for " + core.Listed(audience)
	}
	if ttl := s.GetSpec().GetTtl(); ttl != "" {
		text += ", each version for " + ttl
	}
	return text
}

// DeleteSecret deletes a secret with all its values.
func (s *secretService) DeleteSecret(ctx context.Context, request *v1.DeleteSecretRequest) (*v1.Secret, error) {
	namespace := orDefault(request.GetNamespace())
	return s.change(ctx, func(tx *transaction) (*v1.Secret, error) {
		if old := s.find(tx.base, namespace, request.GetName()); old != nil && !request.GetForce() {
			var users []string
			for _, w := range secret.Users(tx.base, namespace, request.GetName()) {
				users = append(users, w.GetMetadata().GetName())
			}
			if len(users) > 0 {
				return nil, core.Refuse(codes.FailedPrecondition, "secret %s is used by %s %s: remove it from their spec.secrets first; "+
					"or delete it nevertheless, so that running replicas lose it and new ones wait for it, with: %s", request.GetName(),
					strings.TrimPrefix(spec.Count(len(users), "workload"), "1 "), core.Listed(users), spec.Hint(namespace, "cloudless secret rm "+request.GetName()+" --force"))
			}
		}
		return s.deleteIn(ctx, tx, namespace, request.GetName(), request.GetVersion())
	})
}

func (s *secretService) GetSecret(ctx context.Context, request *v1.GetSecretRequest) (*v1.Secret, error) {
	return s.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *secretService) ListSecrets(ctx context.Context, request *v1.ListSecretsRequest) (*v1.ListSecretsResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Secret]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListSecretsResponse{Items: items, Next: next}, nil
}

func (s *secretService) WatchSecrets(request *v1.WatchSecretsRequest, stream grpc.ServerStreamingServer[v1.SecretChange]) error {
	return s.watch(stream.Context(), selection[*v1.Secret]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	}, func(change string, o *v1.Secret) error {
		return stream.Send(&v1.SecretChange{Change: change, Secret: o})
	})
}

// touchedSecrets are the uids of the secrets that changed or were delivered.
func touchedSecrets(snap *state.Snapshot, changes []state.Change) map[string]bool {
	touched := touchedObjects[*v1.Secret](snap, changes)
	for _, c := range changes {
		if c.Kind != state.KindSecretReceipt {
			continue
		}
		for _, o := range []state.Object{c.Old, c.New} {
			if r, ok := o.(interface{ GetSecretUid() string }); ok && r.GetSecretUid() != "" {
				touched[r.GetSecretUid()] = true
			}
		}
	}
	return touched
}

// presentSecret adds which workloads name a secret, and how many of their replicas have what they should have.
func (s *Server) presentSecret(snap *state.Snapshot, stored *v1.Secret) *v1.Secret {
	m, now := stored.GetMetadata(), s.Now()
	shown := &v1.Secret{
		ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(), Metadata: m, Spec: stored.GetSpec(),
		Status: &v1.SecretStatus{Version: stored.GetStatus().GetVersion(), Versions: stored.GetStatus().GetVersions()},
	}
	for w := range snap.Workloads(m.GetNamespace(), "") {
		if !secret.Uses(w.GetSpec(), m.GetName()) {
			continue
		}
		shown.Status.UsedBy = append(shown.Status.UsedBy, w.GetMetadata().GetName())
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if !placement.Wanted(r) || r.GetSpec().GetNodeUid() == "" || !secret.Uses(snap.Revision(r.GetSpec().GetRevisionUid()).GetSpec().GetWorkload(), m.GetName()) {
				continue
			}
			shown.Status.Wanted++
			if secret.Has(snap, stored, r, stored.GetStatus().GetVersion()) && !secret.Expired(secret.VersionOf(stored, stored.GetStatus().GetVersion()), now) {
				shown.Status.Delivered++
			}
		}
	}
	return shown
}

// secretProblems says which secrets have expired although workloads use them.
func (s *Server) secretProblems(snap *state.Snapshot) (problems []string) {
	const most = 20
	for one := range snap.Secrets("", "") {
		if problem := secret.Problem(snap, one, s.Now()); problem != "" && len(problems) < most {
			problems = append(problems, problem)
		}
	}
	return problems
}

// ListSecretDeliveries lists which replicas got which version, newest first.
func (s *secretService) ListSecretDeliveries(ctx context.Context, request *v1.ListSecretDeliveriesRequest) (*v1.ListSecretDeliveriesResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	of := s.find(snap, namespace, request.GetName())
	if of == nil {
		return nil, s.missing(snap, namespace, request.GetName())
	}
	const mark = "SecretDelivery:"
	given, err := base64.RawURLEncoding.DecodeString(request.GetPage().GetToken())
	before, ok := strings.CutPrefix(string(given), mark)
	if err != nil || !ok && len(given) > 0 {
		return nil, &spec.Error{Violations: []spec.Violation{{
			Field: "page.token", Message: "is not a token that this list has given; begin again without one",
		}}}
	}
	type keyed struct {
		key string
		*v1.SecretDelivery
	}
	var all []keyed
	for receipt := range snap.SecretReceiptsOf(of.GetMetadata().GetUid()) {
		for _, d := range receipt.GetDeliveries() {
			if key := fmt.Sprintf("%020d %s %d", d.GetTime().AsTime().UnixNano(), d.GetReplicaUid(), d.GetVersion()); before == "" || key < before {
				all = append(all, keyed{key, d})
			}
		}
	}
	slices.SortFunc(all, func(a, b keyed) int { return strings.Compare(b.key, a.key) })
	size := int(request.GetPage().GetSize())
	if size == 0 {
		size = defaultPageSize
	}
	answer := &v1.ListSecretDeliveriesResponse{}
	for i, one := range all {
		if i == size {
			answer.Next = base64.RawURLEncoding.EncodeToString([]byte(mark + all[i-1].key))
			break
		}
		answer.Items = append(answer.Items, one.SecretDelivery)
	}
	return answer, nil
}
