package login

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// overlap is how long the secret before a renewal is still valid: for commands that run with it, and for the case that the
// answer with the new one was lost.
const overlap = 5 * time.Minute

// RenewToken gives the caller's token a new secret and a new lifetime. The secret that the caller used stays valid for a
// while. If it is the one before the last renewal, the answer to that renewal was lost, and nobody has its secret.
func (s *Service) RenewToken(ctx context.Context, _ *v1.RenewTokenRequest) (*v1.CreateTokenResponse, error) {
	caller := core.Caller(ctx)
	if caller.TokenUID == "" {
		return nil, core.Refuse(codes.FailedPrecondition, "only API tokens are renewed by this call, and %s called with a certificate", caller.ID.Name())
	}
	secret := identity.NewAPIToken(s.fingerprint())
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		token := snap.Token(caller.TokenUID)
		if token == nil {
			return core.Refuse(codes.Unauthenticated, "%s", auth.ErrUnknownToken)
		}
		next, err := s.renewed(token, caller.SecretID, secret.ID())
		if err != nil {
			return err
		}
		for _, gone := range secretsOf(token) {
			if gone != next.GetStatus().GetOldSecretId() {
				b.Delete(state.KindCredential, gone)
			}
		}
		b.Create(credential(next, secret))
		b.Create(s.Event(ctx, next, "Renewed", fmt.Sprintf("until %s", next.GetSpec().GetExpireTime().AsTime().Format(time.RFC3339))))
		b.Update(next, token.GetMetadata().GetVersion())
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.CreateTokenResponse{Token: snap.Token(caller.TokenUID), Secret: secret.Reveal()}, nil
}

// renewed is the token with a new secret, after a call with the secret used.
func (s *Service) renewed(token *v1.Token, used, secret string) (*v1.Token, error) {
	now, about := s.Now(), token.GetSpec()
	name := token.GetMetadata().GetName()
	if about.GetRenew() == nil {
		return nil, core.Refuse(codes.FailedPrecondition, "token %s is not renewable: have an admin create another one, with --renewable", name)
	}
	next := proto.CloneOf(token)
	end := now.Add(about.GetRenew().AsDuration())
	if until := about.GetRenewUntil(); until != nil && until.AsTime().Before(end) {
		end = until.AsTime()
	}
	if !end.After(now) {
		return nil, core.Refuse(codes.FailedPrecondition, "token %s may be renewed until %s, and that is over: log in again, or have an admin create another one", name, about.GetRenewUntil().AsTime().Format(time.RFC3339))
	}
	next.Spec.ExpireTime = timestamppb.New(end)
	st := next.Status
	if used != st.GetOldSecretId() {
		st.OldSecretId, st.OldExpireTime = st.GetSecretId(), timestamppb.New(now.Add(overlap))
	}
	st.SecretId = secret
	return next, nil
}

// secretsOf are the ids of all secrets of a token.
func secretsOf(token *v1.Token) []string {
	all := []string{token.GetStatus().GetSecretId()}
	if old := token.GetStatus().GetOldSecretId(); old != "" {
		all = append(all, old)
	}
	return all
}

// Logout revokes the caller's own token, unless that is the last one of an admin.
func (s *Service) Logout(ctx context.Context, _ *v1.LogoutRequest) (*v1.LogoutResponse, error) {
	caller := core.Caller(ctx)
	if caller.TokenUID == "" {
		return nil, core.Refuse(codes.FailedPrecondition, "only the bearer of an API token can log out, and %s called with a certificate", caller.ID.Name())
	}
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		token := snap.Token(caller.TokenUID)
		if token == nil {
			return nil
		}
		b.DeleteVersion(state.KindToken, token.GetMetadata().GetUid(), token.GetMetadata().GetVersion())
		for _, secret := range secretsOf(token) {
			b.Delete(state.KindCredential, secret)
		}
		b.Create(s.Event(ctx, token, "Revoked", "its bearer has logged out"))
		return s.checkAdmins(snap, b)
	})
	if err != nil {
		return nil, err
	}
	return &v1.LogoutResponse{}, nil
}
