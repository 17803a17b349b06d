package auth

import (
	"context"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// UnknownJoinToken refuses a join token that does not exist, for the role that a machine
// asked for.
type UnknownJoinToken string

func (role UnknownJoinToken) Error() string {
	return "the join token is not valid: it is unknown, used up, revoked or has expired; create a new one with: cloudless token create --role " + string(role)
}

// Code implements the interface by which errors carry their codes.
func (UnknownJoinToken) Code() codes.Code { return codes.Unauthenticated }

// CheckJoinToken refuses an unknown join token, on a state that is surely the newest.
// Any client can make up a join token, so an unknown one costs no more than an unknown API
// token.
func (a *Authenticator) CheckJoinToken(ctx context.Context, token string, secret identity.JoinToken, role string) error {
	_, err := a.authenticate(ctx, presentedToken{address: MachineOf(ctx), token: token}, func() (core.Principal, error) {
		_, err := a.JoinToken(a.snapshot(), secret, role)
		return core.Principal{}, err
	})
	if core.HasReason(err, core.ReasonNoLeader) {
		return &consensus.NotLeaderError{} // the router waits for the next leader
	}
	return err
}

// JoinToken returns the join token with a secret, used up or not.
func (a *Authenticator) JoinToken(snap *state.Snapshot, secret identity.JoinToken, role string) (*v1.Token, error) {
	credential := snap.Credential(secret.ID())
	if credential == nil || !secret.Matches(credential.GetHash()) {
		return nil, UnknownJoinToken(role)
	}
	token := snap.Token(credential.GetTokenUid())
	if token == nil || !a.core.Now().Before(token.GetSpec().GetExpireTime().AsTime()) {
		return nil, UnknownJoinToken(role)
	}
	if have := token.GetSpec().GetRole(); have != role {
		return nil, core.Refuse(codes.InvalidArgument, "this token lets a machine join as %s, not as %s: join with --role %s, or create another with: cloudless token create --role %s", have, role, have, role)
	}
	return token, nil
}
