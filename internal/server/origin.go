package server

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

// innerAuth marks a connection of the gateway.
type innerAuth struct{ credentials.CommonAuthInfo }

func (innerAuth) AuthType() string { return "inner" }

const (
	// metadataForwarded marks a call that was passed on once already.
	metadataForwarded = "x-cloudless-forwarded"
	// metadataMachine is from where a call came that a server passes on.
	metadataMachine = "x-cloudless-machine"
)

// machineOf is the machine from which a call came: that at the other end of the
// connection, or where a server passes the call on, the one that it names.
func machineOf(ctx context.Context) netip.Addr {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	if passedOnBy(ctx) != "" {
		md, _ := metadata.FromIncomingContext(ctx)
		if named := md.Get(metadataMachine); len(named) == 1 {
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

// passedOnBy is the server that passes a call on, empty if none does.
func passedOnBy(ctx context.Context) string {
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

// isForwarded reports whether another server has passed the call on.
func isForwarded(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, metadataForwarded)) > 0
}

// The gateway proves its callers itself and hands the result on over a private
// in-memory connection, and a server does so when it passes a call on. These
// keys are believed from them only.
const (
	metadataID      = "x-cloudless-id"
	metadataRole    = "x-cloudless-role"
	metadataToken   = "x-cloudless-token-uid"
	metadataExpires = "x-cloudless-expires"
)

// metadataOf is a principal as the gateway and other servers hand it on.
func metadataOf(p core.Principal) metadata.MD {
	md := metadata.Pairs(metadataID, p.ID.String(), metadataRole, p.Role)
	if p.TokenUID != "" {
		md.Set(metadataToken, p.TokenUID)
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
	p := core.Principal{ID: id, Role: first(metadataRole), TokenUID: first(metadataToken)}
	if p.TokenUID != "" {
		if p.Expires, err = time.Parse(time.RFC3339Nano, first(metadataExpires)); err != nil {
			return core.Principal{}, errNoIdentity
		}
	}
	return p, nil
}

// handOn names the caller in the headers of a request to another server, in the place of what the caller says of itself.
func handOn(h http.Header, p core.Principal) {
	for _, key := range []string{"Authorization", headerCopy, metadataID, metadataRole, metadataToken, metadataExpires} {
		h.Del(key)
	}
	for key, values := range metadataOf(p) {
		h[http.CanonicalHeaderKey(key)] = values
	}
}

// principalHeaders are what another server says of the caller.
func principalHeaders(h http.Header) metadata.MD {
	md := metadata.MD{}
	for _, key := range []string{metadataID, metadataRole, metadataToken, metadataExpires} {
		if value := h.Get(key); value != "" {
			md.Set(key, value)
		}
	}
	return md
}
