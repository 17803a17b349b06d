package auth

import (
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc/credentials"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
)

// HeaderCopy marks requests between the registries of servers: the addressed server answers them alone.
const HeaderCopy = "x-cloudless-copy"

// Copying reports whether a request copies images between servers.
func Copying(p core.Principal, r *http.Request) bool {
	return p.Role == core.RoleServer && r.Header.Get(HeaderCopy) != ""
}

// AuthenticateRequest authenticates the caller of an HTTP request. The method is that of a gRPC call, empty for any
// other request.
func (a *Authenticator) AuthenticateRequest(r *http.Request, method string) (core.Principal, error) {
	return a.authenticate(r.Context(), tokenOfRequest(r), func() (core.Principal, error) {
		p, err := a.identify(r)
		if err == nil && forMembers(method) {
			err = a.requireMember(p)
		}
		return p, err
	})
}

// identify authenticates the caller by client certificate, bearer token, or, for registry clients, by a token as the
// password.
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
	if by := tokenOfRequest(r); by.token != "" {
		return a.ofCaller(by)
	}
	return core.Principal{}, errNoIdentity
}

// tokenOfRequest returns the credentials of an HTTP request. Registry clients send the token as a password, browsers
// send it in a header of their WebSockets.
func tokenOfRequest(r *http.Request) presentedToken {
	if r.TLS == nil {
		return presentedToken{}
	}
	if _, member := identity.PeerID(*r.TLS); member {
		return presentedToken{}
	}
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	caller := presentedToken{address: from.Addr().Unmap()}
	if secret, ok := bearer(r.Header.Get("Authorization")); ok {
		caller.token = secret
	} else if _, secret, ok := r.BasicAuth(); ok {
		caller.token = secret
	} else if secret, ok := socketToken(r); ok {
		caller.token = secret
	}
	return caller
}

// socketBearer is the prefix of a protocol name in which browsers send their token, because they cannot set headers of
// a WebSocket.
const socketBearer = "bearer."

// socketToken returns the token of a browser that asks for a WebSocket.
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
