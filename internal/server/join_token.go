package server

import (
	"context"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// unknownJoinToken is a join token that lets nobody join, for the role that a machine asked for.
type unknownJoinToken string

func (role unknownJoinToken) Error() string {
	return "the join token is not valid: it is unknown, used up, revoked or has expired; create a new one with: cloudless token create --role " + string(role)
}

// Code implements the interface by which errors say their codes.
func (unknownJoinToken) Code() codes.Code { return codes.Unauthenticated }

// proveJoinToken refuses a join token by a state that is surely the newest. Anybody can
// make up a join token, so an unknown one costs no more than an unknown API token.
func (a *authenticator) proveJoinToken(ctx context.Context, token string, secret identity.JoinToken, role string) error {
	_, err := a.surely(ctx, shown{address: machineOf(ctx), token: token}, func() (core.Principal, error) {
		_, err := a.joinToken(a.snapshot(), secret, role)
		return core.Principal{}, err
	})
	if core.HasReason(err, core.ReasonNoLeader) {
		return &consensus.NotLeaderError{} // the router waits for the next leader
	}
	return err
}

// joinToken returns the join token with a secret, be it used up or not.
func (a *authenticator) joinToken(snap *state.Snapshot, secret identity.JoinToken, role string) (*v1.Token, error) {
	credential := snap.Credential(secret.ID())
	if credential == nil || !secret.Matches(credential.GetHash()) {
		return nil, unknownJoinToken(role)
	}
	token := snap.Token(credential.GetTokenUid())
	if token == nil || !a.core.Now().Before(token.GetSpec().GetExpireTime().AsTime()) {
		return nil, unknownJoinToken(role)
	}
	if have := token.GetSpec().GetRole(); have != role {
		return nil, core.Refuse(codes.InvalidArgument, "this token lets a machine join as %s, not as %s: join with --role %s, or create another with: cloudless token create --role %s", have, role, have, role)
	}
	return token, nil
}
