// Package streams serves the calls that reach into replicas and stream: logs, exec,
// cp and forward. It finds the replicas, asks the agents of their nodes for a stream each,
// and passes messages between agents and caller.
//
// It knows no session of an agent, only how to ask for a stream. It changes nothing
// in the state, but records in events who reached into which replica, and what for.
package streams

import (
	"context"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// AgentStream is a stream that an agent has opened because the server asked it to.
type AgentStream = grpc.BidiStreamingServer[v1.AttachUp, v1.AttachDown]

// Streams serves the streaming calls of the WorkloadService.
type Streams struct {
	*core.Core
	attach    func(ctx context.Context, node string, open *v1.Open) (stream AgentStream, release func(), err error)
	connected func(node string) (connected bool, changed <-chan struct{})
	hasOutput func(*state.Snapshot, *v1.Workload) error
	forwards  forwards
}

// Options is what Streams are made of.
type Options struct {
	Core *core.Core
	// Attach asks a node's agent to open a stream and waits for it. The stream lives
	// until release is called.
	Attach func(ctx context.Context, node string, open *v1.Open) (stream AgentStream, release func(), err error)
	// Connected reports whether a node has a session. When that may have changed,
	// changed is closed.
	Connected func(node string) (connected bool, changed <-chan struct{})
	// HasOutput refuses workloads that have no logs of their own.
	HasOutput func(*state.Snapshot, *v1.Workload) error
}

// New makes the Streams of a server.
func New(o Options) *Streams {
	return &Streams{Core: o.Core, attach: o.Attach, connected: o.Connected, hasOutput: o.HasOutput}
}
