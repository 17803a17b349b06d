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

// surely proves a caller. A server turns a caller away only if it knows as much as the leader does: the state of a
// server that was just started, or that is cut off, says nothing about who is missing in it.
func (a *Authenticator) surely(ctx context.Context, by shown, prove func() (core.Principal, error)) (core.Principal, error) {
	p, err := prove()
	if notKnown(err) {
		p, err = a.unknown.prove(ctx, by, prove)
	}
	if late, ok := errors.AsType[behindError](err); ok {
		return core.Principal{}, unproven(ctx, late)
	}
	if err != nil {
		return core.Principal{}, unauthenticated(err)
	}
	return p, nil
}

// unproven is the answer to a caller whom only the leader may know. Nothing was done, so that another server may be
// asked: by the one that passed the call on, or by the caller.
func unproven(ctx context.Context, why error) error {
	if IsForwarded(ctx) {
		return &consensus.NotLeaderError{}
	}
	return core.WithReason(core.ReasonNoLeader, fmt.Sprintf("this server is behind the others and does not know the caller: %v; ask another one, or again", why))
}

// proveCall proves the caller of a gRPC method, by the headers of the call alone.
func (a *Authenticator) proveCall(ctx context.Context, method string) (core.Principal, error) {
	if p := core.Caller(ctx); a.stillHolds(p) {
		return p, nil // proved by its headers
	}
	return a.surely(ctx, shownIn(ctx), func() (core.Principal, error) {
		p, err := a.fromContext(ctx)
		if err == nil && forMembers(method) {
			err = a.requireMember(p)
		}
		return p, err
	})
}

// fromContext proves the caller of a gRPC call.
func (a *Authenticator) fromContext(ctx context.Context) (core.Principal, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return core.Principal{}, errNoIdentity
	}
	switch info := from.AuthInfo.(type) {
	case InnerAuth:
		md, _ := metadata.FromIncomingContext(ctx)
		return principalFromMetadata(md)
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
	return a.FromToken(secret)
}

// shown is the API token or join token that a caller without a certificate shows, and from where.
type shown struct {
	address netip.Addr
	token   string // empty for callers with a certificate
}

// shownIn is what a gRPC call shows.
func shownIn(ctx context.Context) shown {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return shown{}
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return shown{}
	}
	if _, member := identity.PeerID(info.State); member {
		return shown{}
	}
	header := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(header) != 1 {
		return shown{}
	}
	secret, _ := bearer(header[0])
	return shown{address: MachineOf(ctx), token: secret}
}
