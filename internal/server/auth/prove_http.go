package auth

import (
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// HeaderCopy marks what servers ask of each other's registries: it is answered
// by the asked one alone.
const HeaderCopy = "x-cloudless-copy"

// Copying reports whether a request copies images between servers.
func Copying(p core.Principal, r *http.Request) bool {
	return p.Role == core.RoleServer && r.Header.Get(HeaderCopy) != ""
}

// ProveRequest proves the caller of an HTTP request. The method is that of a gRPC call, empty for any other request.
func (a *Authenticator) ProveRequest(r *http.Request, method string) (core.Principal, error) {
	return a.surely(r.Context(), shownBy(r), func() (core.Principal, error) {
		p, err := a.identify(r)
		if err == nil && forMembers(method) {
			err = a.requireMember(p)
		}
		return p, err
	})
}

// identify proves the caller by client certificate, bearer token, or, as
// registry clients do it, by a token as the password.
func (a *Authenticator) identify(r *http.Request) (core.Principal, error) {
	if r.TLS == nil {
		return core.Principal{}, errNoIdentity
	}
	if p, ok, err := a.fromTLS(credentials.TLSInfo{State: *r.TLS}); ok {
		if err == nil && p.Role == core.RoleServer && r.Header.Get(metadataID) != "" {
			return a.fromServer(p.ID, principalHeaders(r.Header))
		}
		if err == nil && Copying(p, r) && p.ID.Name() != a.core.UID {
			err = a.requireMember(p)
		}
		return p, err
	}
	if by := shownBy(r); by.token != "" {
		return a.FromToken(by.token)
	}
	return core.Principal{}, errNoIdentity
}

// shownBy is what an HTTP request shows. Registry clients send the
// token as a password, browsers send it in a header of their WebSockets.
func shownBy(r *http.Request) shown {
	if r.TLS == nil {
		return shown{}
	}
	if _, member := identity.PeerID(*r.TLS); member {
		return shown{}
	}
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	caller := shown{address: from.Addr().Unmap()}
	if secret, ok := bearer(r.Header.Get("Authorization")); ok {
		caller.token = secret
	} else if _, secret, ok := r.BasicAuth(); ok {
		caller.token = secret
	} else if secret, ok := socketToken(r); ok {
		caller.token = secret
	}
	return caller
}

// socketBearer begins the name of a protocol behind which browsers show their token, because they cannot give a WebSocket
// headers of their own.
const socketBearer = "bearer."

// socketToken is the token with which a browser asks for a WebSocket.
func socketToken(r *http.Request) (secret string, ok bool) {
	if !strings.HasSuffix(r.URL.Path, ":exec") {
		return "", false
	}
	for _, offered := range strings.Split(r.Header.Get("Sec-WebSocket-Protocol"), ",") {
		if secret, ok = strings.CutPrefix(strings.TrimSpace(offered), socketBearer); ok {
			return secret, true
		}
	}
	return "", false
}
