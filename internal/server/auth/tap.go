package auth

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
)

// Tap checks the headers of calls without a client certificate before the message is read, so that a caller without an
// identity cannot make the server buffer megabytes. It runs in the goroutine that reads the connection.
func (g *Guard) Tap(ctx context.Context, about *tap.Info) (context.Context, error) {
	from := oneport.StrangerOf(ctx)
	if open(about.FullMethodName) {
		if !from.Begin(ctx) {
			return ctx, core.StatusOf(errTooManyCalls())
		}
		return ctx, nil
	}
	p, err := g.Auth.authenticateCall(ctx, about.FullMethodName)
	if err != nil {
		from.Refused()
		return ctx, core.StatusOf(err)
	}
	from.Authenticated()
	return core.WithPrincipal(ctx, p), nil // the interceptors check that it is still valid
}

// TapMember checks the headers of calls with a client certificate. Calls of members pass. If the state does not know a
// caller yet, catching up with the leader delays only the caller's own connection.
func (g *Guard) TapMember(ctx context.Context, about *tap.Info) (context.Context, error) {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return ctx, core.StatusOf(unauthenticated(errNoIdentity))
	}
	info, ok := from.AuthInfo.(credentials.TLSInfo)
	if !ok || g.Auth.isMember(info) {
		return ctx, nil // the gateway has authenticated its callers, and the interceptors check every call
	}
	p, err := g.Auth.authenticateCall(ctx, about.FullMethodName)
	if err == nil {
		err = g.Auth.authorizeEarly(p, about.FullMethodName) // servers that are not members may call only a few methods
	}
	return ctx, core.StatusOf(err)
}

func errTooManyCalls() error {
	return core.Refuse(codes.Unavailable, "too many machines ask to join at this moment; ask again")
}

// TapHTTP does the same for gRPC calls that come through net/http, which has no tap.
func (g *Guard) TapHTTP(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := oneport.StrangerOf(r.Context())
		var err error
		anonymous := open(r.URL.Path) && !certified(r)
		if anonymous {
			if !from.Begin(r.Context()) {
				err = errTooManyCalls()
			}
		} else {
			err = g.authenticateOverHTTP(r)
		}
		if err != nil {
			if !anonymous {
				from.Refused()
			}
			writeStatus(w, status.Convert(core.StatusOf(err)))
			return
		}
		if !anonymous {
			from.Authenticated()
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Guard) authenticateOverHTTP(r *http.Request) error {
	p, err := g.Auth.AuthenticateRequest(r, r.URL.Path)
	if err != nil {
		return err
	}
	_, err = g.Auth.decide(r.Context(), p, func(p core.Principal) error { return g.Auth.authorizeEarly(p, r.URL.Path) })
	return err
}

func certified(r *http.Request) bool {
	if r.TLS == nil {
		return false
	}
	_, ok := identity.PeerID(*r.TLS)
	return ok
}

// writeStatus answers a gRPC call with an error and nothing else.
func writeStatus(w http.ResponseWriter, st *status.Status) {
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set("Grpc-Status", strconv.Itoa(int(st.Code())))
	w.Header().Set("Grpc-Message", url.PathEscape(st.Message()))
	w.WriteHeader(http.StatusOK)
}
