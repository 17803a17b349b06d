// Package svid is the IdentityService: it gives the replicas of workloads that ask for an identity certificates
// (X.509-SVIDs) and tokens (JWT-SVIDs), on behalf of the nodes that they run on, and everyone the public keys of the
// tokens.
//
// It guarantees that a node gets identities only of replicas that are assigned to it, that have not ended, and whose
// revision asks for one. It knows nothing of the socket by which programs get them (package agent/identity).
package svid

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/workloadkeys"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// Service is the IdentityService of one server.
type Service struct {
	v1.UnsafeIdentityServiceServer
	core   *core.Core
	ca     *identity.CA
	sealer *identity.Sealer

	mu     sync.Mutex
	key    string // the uid of the key that signer has
	signer jose.Signer
}

// New makes the service of a server.
func New(c *core.Core, ca *identity.CA, sealer *identity.Sealer) *Service {
	return &Service{core: c, ca: ca, sealer: sealer}
}

// IssueX509 certifies a key of a replica.
func (s *Service) IssueX509(ctx context.Context, request *v1.IssueX509Request) (*v1.IssueX509Response, error) {
	id, ttl, err := s.identityOf(ctx, request.GetReplicaUid())
	if err != nil {
		return nil, err
	}
	chain, err := s.ca.Issue(request.GetCsr(), id, identity.IssueOptions{TTL: ttl, Server: true, Client: true}, s.core.Now())
	if err != nil {
		return nil, core.Refuse(codes.InvalidArgument, "certificate request: %s", err)
	}
	// What follows is for members that do not know the newest authority yet, which workloads do by the bundle.
	return &v1.IssueX509Response{Certificates: chain[:2], Bundle: s.ca.Trust().DERs()}, nil
}

// IssueJwt signs a token for a replica.
func (s *Service) IssueJwt(ctx context.Context, request *v1.IssueJwtRequest) (*v1.IssueJwtResponse, error) {
	id, ttl, err := s.identityOf(ctx, request.GetReplicaUid())
	if err != nil {
		return nil, err
	}
	signer, err := s.signs()
	if err != nil {
		return nil, err
	}
	now := s.core.Now()
	expires := now.Add(ttl).Truncate(time.Second) // as exact as the claim
	token, err := jwt.Signed(signer).Claims(jwt.Claims{
		Issuer: "spiffe://" + id.Cluster(), Subject: id.String(), Audience: request.GetAudience(),
		IssuedAt: jwt.NewNumericDate(now), Expiry: jwt.NewNumericDate(expires),
	}).Serialize()
	if err != nil {
		return nil, fmt.Errorf("sign a token for %s: %w", id, err)
	}
	return &v1.IssueJwtResponse{Token: token, ExpireTime: timestamppb.New(expires)}, nil
}

// identityOf is the identity of a replica of the calling node, and how long it is valid.
func (s *Service) identityOf(ctx context.Context, uid string) (id identity.ID, ttl time.Duration, err error) {
	snap, err := s.core.Consensus.Read(ctx)
	if err != nil {
		return id, 0, err
	}
	r := snap.Replica(uid)
	if r == nil || r.GetSpec().GetNodeUid() != core.Caller(ctx).ID.Name() {
		return id, 0, core.Refuse(codes.PermissionDenied, "replica %s is not assigned to this node, so the node gets no identity for it", uid)
	}
	name := r.GetMetadata().GetName()
	if spec.Ended(r.GetStatus().GetPhase()) {
		return id, 0, core.Refuse(codes.PermissionDenied, "replica %s has ended, so it has no identity any more", name)
	}
	asked := snap.Revision(r.GetSpec().GetRevisionUid()).GetSpec().GetWorkload().GetIdentity()
	if asked == nil {
		return id, 0, core.Refuse(codes.PermissionDenied, "replica %s asks for no identity: set spec.identity of workload %s", name, r.GetSpec().GetWorkload())
	}
	id, err = identity.NewID(s.ca.Trust().Cluster(), identity.KindWorkload, r.GetMetadata().GetNamespace(), r.GetSpec().GetWorkload())
	return id, spec.IdentityTTL(asked), err
}

// signs returns what signs with the active key.
func (s *Service) signs() (jose.Signer, error) {
	key := workloadkeys.Active(s.core.Store.Snapshot())
	if key == nil {
		return nil, core.Refuse(codes.Unavailable, "the cluster has no key for tokens yet; try again in a moment")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.key == key.GetMetadata().GetUid() {
		return s.signer, nil
	}
	private, err := workloadkeys.Open(s.ca.Trust().Cluster(), s.sealer, key)
	if err != nil {
		return nil, err
	}
	signer, err := newSigner(private, key.GetMetadata().GetUid())
	if err != nil {
		return nil, err
	}
	s.key, s.signer = key.GetMetadata().GetUid(), signer
	return signer, nil
}

func newSigner(key *ecdsa.PrivateKey, id string) (jose.Signer, error) {
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: id}},
		(&jose.SignerOptions{}).WithType("JWT"),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare the key for tokens of workloads: %w", err)
	}
	return signer, nil
}

// Keys is the public half of the keys for tokens, as a JSON Web Key Set.
func (s *Service) Keys() ([]byte, error) { return workloadkeys.Set(s.core.Store.Snapshot()) }

// GetWorkloadKeys returns the keys to everyone.
func (s *Service) GetWorkloadKeys(context.Context, *v1.GetWorkloadKeysRequest) (*v1.GetWorkloadKeysResponse, error) {
	set, err := s.Keys()
	return &v1.GetWorkloadKeysResponse{Jwks: set}, err
}
