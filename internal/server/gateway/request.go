package gateway

import (
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// callMetadata is what the gateway sends with the call of an HTTP request: the caller, the
// request's id, and the trace that it belongs to.
func callMetadata(r *http.Request) metadata.MD {
	md := auth.MetadataOf(core.Caller(r.Context()))
	md.Set(telemetry.RequestIDHeader, telemetry.RequestID(r.Context()))
	if parent := r.Header.Get("Traceparent"); parent != "" && len(parent) <= 64 {
		md.Set("traceparent", parent)
	}
	return md
}

// requested gives every HTTP request an id, which the answer returns, and counts and logs
// it.
func (s *gateway) requested(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		ctx, id := telemetry.WithRequestID(r.Context(), r.Header.Get(telemetry.RequestIDHeader))
		w.Header().Set(telemetry.RequestIDHeader, id)
		answer := &countedAnswer{ResponseWriter: w, code: http.StatusOK}
		defer func() {
			s.metrics.Requested(route(r.URL.Path), answer.code)
			s.logger.DebugContext(ctx, "http request", "verb", r.Method, "path", r.URL.Path, "code", answer.code, "took", time.Since(started))
		}()
		next.ServeHTTP(answer, r.WithContext(ctx))
	})
}

// route is the part of the server that a path leads to.
func route(path string) string {
	switch {
	case strings.HasPrefix(path, "/v1/"):
		return "api"
	case path == "/v2" || strings.HasPrefix(path, "/v2/"):
		return "registry"
	case path == "/metrics", path == "/healthz":
		return map[string]string{"/metrics": "metrics", "/healthz": "health"}[path]
	case path == "/openapi.json":
		return "openapi"
	}
	return "other"
}

// countedAnswer records the status code. Unwrap gives access to other abilities of the
// writer beneath.
type countedAnswer struct {
	http.ResponseWriter
	code    int
	written bool
}

func (a *countedAnswer) WriteHeader(code int) {
	if !a.written && code >= http.StatusOK || code == http.StatusSwitchingProtocols {
		a.code, a.written = code, true
	}
	a.ResponseWriter.WriteHeader(code)
}

func (a *countedAnswer) Write(data []byte) (int, error) {
	a.written = true
	return a.ResponseWriter.Write(data)
}

// Flush is for callers that use an http.Flusher instead of a controller.
func (a *countedAnswer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

func (a *countedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// gatewayMetadata is what the gateway says about a request: its authenticated caller, and
// whether a stale answer will do.
func gatewayMetadata(r *http.Request) metadata.MD {
	md := callMetadata(r)
	if r.Header.Get(relay.Consistency) == relay.Stale {
		md.Set(relay.Consistency, relay.Stale)
	}
	return md
}

// withConsistency accepts the consistency as a parameter too, which the messages do not
// have.
func withConsistency(r *http.Request) *http.Request {
	query := r.URL.Query()
	if query.Get(relay.Consistency) != relay.Stale {
		return r
	}
	r = r.Clone(r.Context())
	query.Del(relay.Consistency)
	r.URL.RawQuery = query.Encode()
	r.Header.Set(relay.Consistency, relay.Stale)
	return r
}
