package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

const defaultTokenTTL = 24 * time.Hour

// tokenService is the TokenService.
type tokenService struct {
	v1.UnsafeTokenServiceServer
	*collection[*v1.Token]
}

func newTokens(s *Server) *collection[*v1.Token] {
	c := newCollection[*v1.Token](s, state.KindToken)
	c.remove = func(ctx context.Context, tx *transaction, token *v1.Token) *v1.Token {
		tx.batch.DeleteVersion(state.KindToken, token.GetMetadata().GetUid(), token.GetMetadata().GetVersion())
		tx.batch.Delete(state.KindCredential, token.GetStatus().GetSecretId())
		if old := token.GetStatus().GetOldSecretId(); old != "" {
			tx.batch.Delete(state.KindCredential, old)
		}
		tx.batch.Create(s.Event(ctx, token, "Revoked", "it can be used no longer"))
		return token
	}
	return c
}

// tokenSecret is a join token or an API token.
type tokenSecret interface {
	ID() string
	Hash() []byte
	Reveal() string
}

func (s *tokenService) CreateToken(ctx context.Context, request *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
	return s.Server.CreateToken(ctx, request)
}

// CreateToken creates a token on behalf of the caller in ctx. Secrets are not stored. If a call is repeated by its
// idempotency key, the first answer must have been lost, and the token gets a new secret.
func (s *Server) CreateToken(ctx context.Context, request *v1.CreateTokenRequest) (*v1.CreateTokenResponse, error) {
	token, secret, err := s.newToken(request)
	if err != nil {
		return nil, err
	}
	receipt, err := core.NewReceipt(ctx, v1.TokenService_CreateToken_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	uid := token.GetMetadata().GetUid()
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		done, err := receipt.Find(snap)
		if err != nil {
			return err
		}
		if done != nil {
			uid = done.GetObjectUid()
			return s.replaceSecret(ctx, b, snap.Token(uid), secret)
		}
		m := token.GetMetadata()
		if err := mayCreate(ctx, s.Now(), snap, token); err != nil {
			return err
		}
		if snap.TokenByName(m.GetName()) != nil {
			return core.Refuse(codes.AlreadyExists, "token %s exists already; choose another name, or revoke it with: cloudless token rm %s", m.GetName(), m.GetName())
		}
		b.Create(token)
		b.Create(credentialOf(token, secret))
		b.Create(s.Event(ctx, token, "Created", fmt.Sprintf("for role %s until %s", roles.Granted{Role: token.GetSpec().GetRole(), Namespace: token.GetSpec().GetNamespace()}, token.GetSpec().GetExpireTime().AsTime().Format(time.RFC3339))))
		receipt.Keep(b, m.GetUid(), "")
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.CreateTokenResponse{Token: snap.Token(uid), Secret: secret.Reveal()}, nil
}

// credentialOf is what the state stores of a token's secret.
func credentialOf(token *v1.Token, secret tokenSecret) *statev1.Credential {
	return &statev1.Credential{Metadata: &v1.Metadata{Uid: secret.ID()}, Hash: secret.Hash(), TokenUid: token.GetMetadata().GetUid()}
}

// replaceSecret gives a token a new secret, unless the old one has been used.
func (s *Server) replaceSecret(ctx context.Context, b *state.Batch, token *v1.Token, secret tokenSecret) error {
	switch {
	case token == nil:
		return core.Refuse(codes.FailedPrecondition, "the token that this call created has been revoked since; use a new idempotency key to create another")
	case token.GetStatus().GetUsed() > 0:
		return core.Refuse(codes.FailedPrecondition, "the token that this call created has been used since; use a new idempotency key to create another")
	}
	b.Delete(state.KindCredential, token.GetStatus().GetSecretId())
	b.Create(credentialOf(token, secret))
	b.Create(s.Event(ctx, token, "Replaced", "its secret is another one, because the call that created it was repeated"))
	next := proto.CloneOf(token)
	next.Status.SecretId = secret.ID()
	b.Update(next, token.GetMetadata().GetVersion())
	return nil
}

// describe adds to a new token what it is for, whether it is renewable, and what the machine that joins with it is called.
func describe(token *v1.Token, request *v1.CreateTokenRequest, ttl time.Duration) error {
	about := token.GetSpec()
	joins := about.GetRole() == core.RoleNode || about.GetRole() == core.RoleServer
	refuse := func(field, message string) error {
		return &spec.Error{Violations: []spec.Violation{{Field: field, Message: message}}}
	}
	switch {
	case !joins && (request.GetNodeName() != "" || len(request.GetNodeLabels()) > 0 || request.GetZone() != ""):
		return refuse("role", "must be node or server: the name, labels and zone are those of the machine that joins")
	case about.GetRole() == core.RoleServer && len(request.GetNodeLabels()) > 0:
		return refuse("nodeLabels", "are only for tokens of role node: a server has none")
	case request.GetNodeName() != "" && about.GetUses() != 1:
		return refuse("uses", "must be 1 if the token fixes the name: two machines cannot have the same")
	case joins && request.GetRenewable():
		return refuse("renewable", "is only for API tokens: a machine joins once")
	}
	about.Purpose, about.NodeName, about.NodeLabels, about.Zone = request.GetPurpose(), request.GetNodeName(), request.GetNodeLabels(), request.GetZone()
	if request.GetRenewable() {
		about.Renew = durationpb.New(ttl)
	}
	return nil
}

// lastingAuthority is the authority that a new token names: the next one if the cluster replaces its authority.
func (s *Server) lastingAuthority() identity.Fingerprint {
	if next, err := identity.ParseTrust(s.Store.Snapshot().Authority().GetNextCertificate()); err == nil {
		return next.Fingerprint()
	}
	return s.ca.Lasting()
}

func (s *Server) newToken(request *v1.CreateTokenRequest) (*v1.Token, tokenSecret, error) {
	ttl := defaultTokenTTL
	if request.GetTtl() != "" {
		var err error
		if ttl, err = spec.ParseDuration(request.GetTtl()); err != nil {
			return nil, nil, err
		}
		if ttl <= 0 {
			return nil, nil, &spec.Error{Violations: []spec.Violation{{Field: "ttl", Message: "must be more than 0: a token that has ended is of no use"}}}
		}
	}
	uses := request.GetUses()
	var secret tokenSecret
	ca := s.lastingAuthority()
	if request.GetRole() == core.RoleNode || request.GetRole() == core.RoleServer {
		secret = identity.NewJoinToken(ca)
		uses = max(uses, 1)
	} else {
		secret = identity.NewAPIToken(ca)
		if uses != 0 {
			return nil, nil, &spec.Error{Violations: []spec.Violation{{
				Field: "uses", Message: "is only for tokens of role node and server; an API token may be used until it expires",
			}}}
		}
	}
	name := request.GetName()
	if name == "" {
		name = request.GetRole() + "-" + secret.ID()
	}
	token := &v1.Token{
		ApiVersion: spec.APIVersion,
		Kind:       "Token",
		Metadata:   &v1.Metadata{Uid: state.NewUID(), Name: name, Labels: request.GetLabels()},
		Spec: &v1.TokenSpec{
			Role: request.GetRole(), ExpireTime: timestamppb.New(s.Now().Add(ttl)), Uses: uses, Namespace: request.GetNamespace(),
		},
		Status: &v1.TokenStatus{SecretId: secret.ID()},
	}
	return token, secret, describe(token, request, ttl)
}

// TokenOf returns the token of an API secret; nil if it gives its bearer nothing now, as far as this server knows.
func (s *Server) TokenOf(secret string) *v1.Token {
	p, err := s.auth.FromToken(secret)
	if err != nil {
		return nil
	}
	return s.Store.Snapshot().Token(p.TokenUID)
}

// defaultMaxTokenTTL is how long a token for one namespace may be valid, if the configuration says nothing else.
const defaultMaxTokenTTL = "720h"

// mayCreate refuses a token for a role or a namespace that does not exist, one for a namespace that would be valid too
// long, and one that would permit more than its author may do.
func mayCreate(ctx context.Context, now time.Time, snap *state.Snapshot, token *v1.Token) error {
	about := token.GetSpec()
	if about.GetRole() == core.RoleNode || about.GetRole() == core.RoleServer {
		if about.GetNamespace() != "" {
			return invalid("namespace", "is only for API tokens: machines are in no namespace")
		}
		// A server knows every key, and a node every secret of what runs there: who lets one in gives that away.
		return mayGive(ctx, roles.Named(core.RoleAdmin, snap.RoleByName).GetSpec(), "", "token "+token.GetMetadata().GetName())
	}
	if roles.Named(about.GetRole(), snap.RoleByName) == nil {
		return missingRole(snap, "role", about.GetRole())
	}
	if namespace := about.GetNamespace(); namespace != "" {
		if findNamespace(snap, namespace) == nil {
			return missingNamespace(snap, namespace)
		}
		longest := cmp.Or(snap.Cluster().GetSpec().GetSecurity().GetMaxTokenTtl(), defaultMaxTokenTTL)
		if most, err := spec.ParseDuration(longest); err == nil && about.GetExpireTime().AsTime().Sub(now) > most {
			return invalid("ttl", fmt.Sprintf("must be at most %s for a token of one namespace; make another token when it ends, or raise security.maxTokenTtl in the configuration", longest))
		} else if about.GetRenew() != nil && err == nil {
			about.RenewUntil = timestamppb.New(now.Add(most)) // renewing does not go beyond the limit
		}
	}
	for _, granted := range auth.PermissionsOf(snap, token).Grants() { // also by bindings that name the token already
		role := roles.Named(granted.Role, snap.RoleByName)
		if err := mayGive(ctx, role.GetSpec(), granted.Namespace, "token "+token.GetMetadata().GetName()); err != nil {
			return err
		}
	}
	return nil
}

// RoleOf returns the role that an API token gives its bearer now in all namespaces. known is false if this server does not
// know the token.
func (s *Server) RoleOf(secret string) (role string, known bool) {
	p, err := s.auth.FromToken(secret)
	if !slices.ContainsFunc(p.Permissions.Grants(), func(g roles.Granted) bool { return g == roles.Granted{Role: p.Role} }) {
		p.Role = ""
	}
	return p.Role, !errors.Is(err, auth.ErrUnknownToken)
}

func (s *tokenService) GetToken(ctx context.Context, request *v1.GetTokenRequest) (*v1.Token, error) {
	return s.read(ctx, "", request.GetName())
}

func (s *tokenService) ListTokens(ctx context.Context, request *v1.ListTokensRequest) (*v1.ListTokensResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Token]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	return &v1.ListTokensResponse{Items: items, Next: next}, nil
}

func (s *tokenService) DeleteToken(ctx context.Context, request *v1.DeleteTokenRequest) (*v1.DeleteTokenResponse, error) {
	if _, err := s.delete(ctx, "", request.GetName(), 0); err != nil {
		return nil, err
	}
	return &v1.DeleteTokenResponse{}, nil
}
