package auth

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// InnerAuth marks a connection of the gateway.
type InnerAuth struct{ credentials.CommonAuthInfo }

func (InnerAuth) AuthType() string { return "inner" }

const (
	// MetadataForwarded marks a call that was relayed once already.
	MetadataForwarded = "x-cloudless-forwarded"
	// MetadataMachine is the machine that a relayed call came from.
	MetadataMachine = "x-cloudless-machine"
)

// MachineOf returns the machine that a call came from: the peer of the connection, or the machine that the relaying
// server names.
func MachineOf(ctx context.Context) netip.Addr {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	if RelayedBy(ctx) != "" {
		if named := metadata.ValueFromIncomingContext(ctx, MetadataMachine); len(named) == 1 {
			machine, _ := netip.ParseAddr(named[0])
			return machine
		}
		return netip.Addr{}
	}
	tcp, ok := from.Addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap()
}

// RelayedBy returns the server that relays a call; empty if none does.
func RelayedBy(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return ""
	}
	if id, ok := identity.PeerID(info.State); ok && id.Kind() == identity.KindServer {
		return id.Name()
	}
	return ""
}

// IsForwarded reports whether another server has relayed the call.
func IsForwarded(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, MetadataForwarded)) > 0
}

// The gateway authenticates its callers itself and sends the result over a private in-memory connection. A server that
// relays a call does the same. These keys count only from them.
const (
	metadataID      = "x-cloudless-id"
	metadataRole    = "x-cloudless-role"
	metadataToken   = "x-cloudless-token-uid"
	metadataSecret  = "x-cloudless-secret-id"
	metadataExpires = "x-cloudless-expires"
)

// MetadataOf returns a principal in the form in which the gateway and other servers send it.
func MetadataOf(p core.Principal) metadata.MD {
	md := metadata.Pairs(metadataID, p.ID.String(), metadataRole, p.Role)
	if p.TokenUID != "" {
		md.Set(metadataToken, p.TokenUID)
		md.Set(metadataSecret, p.SecretID)
		md.Set(metadataExpires, p.Expires.Format(time.RFC3339Nano))
	}
	return md
}

func principalFromMetadata(md metadata.MD) (core.Principal, error) {
	first := func(key string) string {
		if values := md.Get(key); len(values) == 1 {
			return values[0]
		}
		return ""
	}
	id, err := identity.ParseID(first(metadataID))
	if err != nil {
		return core.Principal{}, errNoIdentity
	}
	p := core.Principal{ID: id, Role: first(metadataRole), TokenUID: first(metadataToken), SecretID: first(metadataSecret)}
	if p.TokenUID != "" {
		if p.Expires, err = time.Parse(time.RFC3339Nano, first(metadataExpires)); err != nil {
			return core.Principal{}, errNoIdentity
		}
	}
	return p, nil
}

// SetCaller names the caller in the headers of a request to another server, and replaces what the caller sent.
func SetCaller(h http.Header, p core.Principal) {
	for _, key := range []string{"Authorization", HeaderCopy, metadataID, metadataRole, metadataToken, metadataSecret, metadataExpires} {
		h.Del(key)
	}
	for key, values := range MetadataOf(p) {
		h[http.CanonicalHeaderKey(key)] = values
	}
}

// principalHeaders returns what another server says about the caller.
func principalHeaders(h http.Header) metadata.MD {
	md := metadata.MD{}
	for _, key := range []string{metadataID, metadataRole, metadataToken, metadataSecret, metadataExpires} {
		if value := h.Get(key); value != "" {
			md.Set(key, value)
		}
	}
	return md
}
