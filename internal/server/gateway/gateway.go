// Package gateway is the HTTP side of a server: HTTP/JSON, which it turns into gRPC calls, exec by WebSocket, and the
// routes to the registry and to the metrics.
//
// It guarantees that only /healthz and the public keys of workloads' tokens are answered without an identity. It knows no
// noun but what the .proto files declare, except exec and these keys.
package gateway

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/cloudless/cloudless/internal/server/auth"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// MaxMessage is the longest request in bytes, by gRPC and by HTTP.
const MaxMessage = 8 << 20

// gateway is the HTTP side of a server.
type gateway struct {
	auth             *auth.Authenticator
	revoked          *auth.Revocations
	metrics          *telemetry.Server
	logger           *slog.Logger
	inner            *Inner
	stopping         context.Context
	registry, scrape http.Handler
	refuseRegistry   func(http.ResponseWriter, error)
	workloadKeys     func() ([]byte, error)
}

// Options are the parts of a gateway.
type Options struct {
	Auth    *auth.Authenticator
	Revoked *auth.Revocations
	Metrics *telemetry.Server
	Logger  *slog.Logger
	// Inner leads to the gRPC server of the same process.
	Inner *Inner
	// Stopping ends when the server stops.
	Stopping context.Context
	// Registry answers requests below /v2/, and RefuseRegistry refuses them in the form that registry clients show.
	Registry       http.Handler
	RefuseRegistry func(http.ResponseWriter, error)
	// Scrape answers /metrics.
	Scrape http.Handler
	// WorkloadKeys is the JSON Web Key Set by which everyone can verify tokens of workloads.
	WorkloadKeys func() ([]byte, error)
}

// New returns the handler of all requests that are not gRPC.
func New(o Options) (http.Handler, error) {
	g := &gateway{
		auth: o.Auth, revoked: o.Revoked, metrics: o.Metrics, logger: o.Logger, inner: o.Inner, stopping: o.Stopping,
		registry: o.Registry, refuseRegistry: o.RefuseRegistry, scrape: o.Scrape,
		workloadKeys: o.WorkloadKeys,
	}
	return g.newHTTP()
}
