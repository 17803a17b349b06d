package gateway

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/oneport"
)

// newHTTP returns the handler of everything that is not gRPC: HTTP/JSON, the registry,
// metrics.
func (s *gateway) newHTTP() (http.Handler, error) {
	calls, err := s.newCalls()
	if err != nil {
		return nil, err
	}
	known := http.NewServeMux()
	known.Handle("/v1/", notTooLong(calls))
	known.Handle("/v2/", s.registry)
	known.Handle("GET /metrics", s.scrape)
	known.HandleFunc("GET /openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(api.OpenAPI)
	})
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if oneport.StrangerOf(r.Context()).Refused() { // a health check does not authenticate either
			w.Header().Set("Connection", "close")
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /.well-known/jwks.json", s.serveKeys)
	mux.HandleFunc("GET /v1/identity/keys", s.serveKeys)
	mux.Handle("/", s.identified(known))
	return s.requested(mux), nil
}

// serveKeys answers with the keys of workloads' tokens, as they are at the first path, and as the API's message at the
// other.
func (s *gateway) serveKeys(w http.ResponseWriter, r *http.Request) {
	if oneport.StrangerOf(r.Context()).Refused() { // the answer is for everyone, so it proves nothing about the caller
		w.Header().Set("Connection", "close")
	}
	keys, err := s.workloadKeys()
	if err != nil {
		writeError(w, core.StatusOf(err))
		return
	}
	// A new key is published a day before it signs.
	w.Header().Set("Cache-Control", "public, max-age=300")
	w.Header().Set("Content-Type", "application/json")
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		_ = json.NewEncoder(w).Encode(map[string][]byte{"jwks": keys})
		return
	}
	_, _ = w.Write(keys)
}

// maxUnread is how much of a too long request is read and discarded.
const maxUnread = 64 << 20

// notTooLong refuses requests that exceed the size of a message.
func notTooLong(next http.Handler) http.Handler {
	limited := http.MaxBytesHandler(next, MaxMessage)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength <= MaxMessage {
			limited.ServeHTTP(w, r)
			return
		}
		// A client that is still sending when the connection is closed may never see the
		// answer.
		_, _ = io.CopyN(io.Discard, r.Body, maxUnread)
		writeError(w, core.StatusOf(core.Refuse(codes.InvalidArgument, "the request has %d bytes, more than the maximum of %d", r.ContentLength, MaxMessage)))
	})
}

// identified refuses requests without an identity.
func (s *gateway) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		registry := r.URL.Path == "/v2" || strings.HasPrefix(r.URL.Path, "/v2/")
		writeError := writeError
		if registry {
			writeError = s.refuseRegistry
		}
		p, err := s.auth.AuthenticateRequest(r, "")
		if err != nil {
			last := oneport.StrangerOf(r.Context()).Refused()
			if last || r.ProtoMajor == 1 && r.ContentLength != 0 {
				w.Header().Set("Connection", "close") // else its body is read before the answer is sent
			}
			scheme := "Bearer"
			if registry {
				scheme = "Basic"
			}
			if err = core.StatusOf(err); status.Code(err) == codes.Unauthenticated {
				w.Header().Set("WWW-Authenticate", scheme+` realm="cloudless"`)
			}
			writeError(w, err)
			return
		}
		oneport.StrangerOf(r.Context()).Authenticated()
		r = r.WithContext(core.WithPrincipal(r.Context(), p))
		if strings.HasPrefix(r.URL.Path, "/v1/") { // the API authorizes itself, and says itself why a stream ends
			next.ServeHTTP(w, r)
			return
		}
		p, still, err := s.auth.AuthorizeHTTP(r, p)
		if err != nil {
			writeError(w, core.StatusOf(err))
			return
		}
		ctx, release := s.revoked.Bind(core.WithPrincipal(r.Context(), p), p, still)
		defer release()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// writeError answers in the form of the gateway's errors.
func writeError(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(runtime.HTTPStatusFromCode(st.Code()))
	_ = json.NewEncoder(w).Encode(map[string]any{"code": st.Code(), "message": st.Message()})
}
