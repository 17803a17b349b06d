package auth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// authenticate authenticates a caller. A server refuses a caller only if it knows as much as the leader does: the state
// of a server that has just started, or that is cut off, may lack callers.
func (a *Authenticator) authenticate(ctx context.Context, by presentedToken, identify func() (core.Principal, error)) (core.Principal, error) {
	p, err := identify()
	if notKnown(err) {
		p, err = a.unknown.retry(ctx, by, identify)
	}
	if late, ok := errors.AsType[behindError](err); ok {
		return core.Principal{}, refuseBehind(ctx, late)
	}
	if err != nil {
		return core.Principal{}, unauthenticated(err)
	}
	return p, nil
}

// refuseBehind is the answer to a caller that only the leader may know. Nothing was done, so the relaying server or the
// caller may try another server.
func refuseBehind(ctx context.Context, why error) error {
	if IsForwarded(ctx) {
		return &consensus.NotLeaderError{}
	}
	return core.WithReason(core.ReasonNoLeader, fmt.Sprintf("this server is behind the others and does not know the caller: %v; ask another one, or again", why))
}

// authenticateCall authenticates the caller of a gRPC method, by the headers of the call alone.
func (a *Authenticator) authenticateCall(ctx context.Context, method string) (core.Principal, error) {
	if p, ok := a.stillValid(core.Caller(ctx)); ok {
		return p, nil // authenticated by its headers
	}
	return a.authenticate(ctx, tokenOfCall(ctx), func() (core.Principal, error) {
		p, err := a.fromContext(ctx)
		if err == nil && forMembers(method) {
			err = a.requireMember(p)
		}
		return p, err
	})
}

// fromContext authenticates the caller of a gRPC call.
func (a *Authenticator) fromContext(ctx context.Context) (core.Principal, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return core.Principal{}, errNoIdentity
	}
	switch info := from.AuthInfo.(type) {
	case InnerAuth:
		md, _ := metadata.FromIncomingContext(ctx)
		p, err := principalFromMetadata(md)
		if err == nil && p.TokenUID != "" {
			return a.again(p) // with what it permits now
		}
		return p, err
	case credentials.TLSInfo:
		if p, ok, err := a.fromTLS(info); ok {
			if err == nil && p.Role == core.RoleServer && len(metadata.ValueFromIncomingContext(ctx, metadataID)) > 0 {
				md, _ := metadata.FromIncomingContext(ctx)
				return a.fromServer(p.ID, md)
			}
			return p, err
		}
	default:
		return core.Principal{}, errNoIdentity
	}
	header := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(header) != 1 {
		return core.Principal{}, errNoIdentity
	}
	secret, ok := bearer(header[0])
	if !ok {
		return core.Principal{}, errNoIdentity
	}
	return a.ofCaller(presentedToken{token: secret, address: MachineOf(ctx)})
}

// presentedToken is the API token or join token that a caller without a certificate sends, and its address.
type presentedToken struct {
	address netip.Addr
	token   string // empty for callers with a certificate
}

// tokenOfCall returns the credentials of a gRPC call.
func tokenOfCall(ctx context.Context) presentedToken {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return presentedToken{}
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return presentedToken{}
	}
	if _, member := identity.PeerID(info.State); member {
		return presentedToken{}
	}
	header := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(header) != 1 {
		return presentedToken{}
	}
	secret, _ := bearer(header[0])
	return presentedToken{address: MachineOf(ctx), token: secret}
}

// decide lets a check decide about a caller. A server refuses a caller only if it knows as much as the leader does: the
// state of a server that lags behind may lack a role, a binding, or a change of one.
func (a *Authenticator) decide(ctx context.Context, p core.Principal, check func(core.Principal) error) (core.Principal, error) {
	err := check(p)
	if err == nil || !p.IsUser() {
		return p, err
	}
	now, late := a.unknown.afterCatchUp(ctx, func() (core.Principal, error) { return a.again(p) })
	if behind, ok := errors.AsType[behindError](late); ok {
		return p, refuseBehind(ctx, behind)
	}
	if late != nil {
		return p, unauthenticated(late)
	}
	return now, check(now)
}
