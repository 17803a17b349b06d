package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
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
		if snap.TokenByName(m.GetName()) != nil {
			return core.Refuse(codes.AlreadyExists, "token %s exists already; choose another name, or revoke it with: cloudless token rm %s", m.GetName(), m.GetName())
		}
		b.Create(token)
		b.Create(credentialOf(token, secret))
		b.Create(s.Event(ctx, token, "Created", fmt.Sprintf("for role %s until %s", token.GetSpec().GetRole(), token.GetSpec().GetExpireTime().AsTime().Format(time.RFC3339))))
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
	return &v1.Token{
		ApiVersion: spec.APIVersion,
		Kind:       "Token",
		Metadata:   &v1.Metadata{Uid: state.NewUID(), Name: name, Labels: request.GetLabels()},
		Spec:       &v1.TokenSpec{Role: request.GetRole(), ExpireTime: timestamppb.New(s.Now().Add(ttl)), Uses: uses},
		Status:     &v1.TokenStatus{SecretId: secret.ID()},
	}, secret, nil
}

// RoleOf returns the role that an API token gives its bearer now. known is false if this server does not know the
// token.
func (s *Server) RoleOf(secret string) (role string, known bool) {
	p, err := s.auth.FromToken(secret)
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
