package agent

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Observe registers the metrics that are collected on demand, until stop is called.
func (a *Agent) Observe(r *telemetry.Registry) (stop func()) {
	stopReplicas := r.Collect([]telemetry.Metric{telemetry.AgentReplicas, telemetry.AgentLogBytes}, func(emit telemetry.Emit) {
		for phase, count := range a.phases() {
			emit(telemetry.AgentReplicas, float64(count), phase)
		}
		if size, err := a.logs.size(); err == nil {
			emit(telemetry.AgentLogBytes, float64(size))
		}
	})
	stopTraffic := r.Collect([]telemetry.Metric{telemetry.NodeReceived, telemetry.NodeSent, telemetry.NodeRead, telemetry.NodeWritten}, func(emit telemetry.Emit) {
		if t, err := a.machine.Traffic(); err == nil {
			emit(telemetry.NodeReceived, float64(t.Received))
			emit(telemetry.NodeSent, float64(t.Sent))
			emit(telemetry.NodeRead, float64(t.Read))
			emit(telemetry.NodeWritten, float64(t.Written))
		}
	})
	stopNetwork := r.Collect(telemetry.Mesh(), a.collectNetwork)
	return func() {
		stopReplicas()
		stopTraffic()
		stopNetwork()
	}
}

// collectTime is how long the network process may take to answer a scrape.
const collectTime = 5 * time.Second

func (a *Agent) collectNetwork(emit telemetry.Emit) {
	if drops, err := a.network.Drops(); err == nil {
		rules := map[string]uint64{}
		for _, d := range drops {
			rules[d.Rule] += d.Packets
		}
		for rule, packets := range rules {
			emit(telemetry.DroppedPackets, float64(packets), rule)
		}
	}
	if a.mesh == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTime)
	defer cancel()
	status, err := a.mesh.Status(ctx, false)
	if err != nil {
		return // a network process that does not answer has no values
	}
	for _, state := range []mesh.State{mesh.StateDirect, mesh.StateRelayed, mesh.StateDown, mesh.StateIdle} {
		emit(telemetry.MeshPeers, float64(status.States[state]), string(state))
	}
	emit(telemetry.MeshReceived, float64(status.Totals.Received))
	emit(telemetry.MeshSent, float64(status.Totals.Sent))
	emit(telemetry.MeshHandshakes, float64(status.Totals.Handshakes))
}

func (a *Agent) phases() map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	counts := map[string]int{}
	for _, r := range a.replicas {
		_, status := r.running()
		counts[status.GetPhase()]++
	}
	return counts
}

// size is the size of all logs. A file that vanishes meanwhile does not count.
func (l *logs) size() (bytes int64, err error) {
	err = filepath.WalkDir(l.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if path == l.dir {
				return err
			}
			return nil
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return bytes, err
}

// drive calls a driver, with metrics and a trace.
func (r *replica) drive(ctx context.Context, verb string, do func(context.Context) error) error {
	var span *telemetry.Span
	if r.tracing != nil && telemetry.Traced(ctx) {
		ctx, span = r.tracing.Start(ctx, telemetry.SpanInternal, "driver "+verb, "driver", r.driver.Name())
	}
	began := time.Now()
	err := do(ctx)
	failure := err
	if errors.Is(err, driver.ErrNotFound) {
		failure = nil // stopping or removing what is gone is not a failure
	}
	r.metrics.Drove(r.driver.Name(), verb, failure, time.Since(began))
	span.End(failure)
	return err
}

// traceStart begins the span of a replica's first start, below the call that made its
// revision.
func (r *replica) traceStart(ctx context.Context) (context.Context, *telemetry.Span) {
	if r.tracing == nil || r.rec.Attempt != 1 {
		return ctx, nil
	}
	parent := telemetry.TraceOf(r.rec.Assignment.GetRevision(), time.Now())
	if parent == "" {
		return ctx, nil
	}
	m := r.rec.Assignment.GetReplica()
	return r.tracing.Start(telemetry.WithTraceparent(ctx, parent), telemetry.SpanInternal, "start replica",
		"replica", m.GetMetadata().GetName(), "node", m.GetSpec().GetNode())
}

// resultOf is one word about an exit.
func resultOf(exit *v1.Exit, unhealthy bool) string {
	switch {
	case unhealthy:
		return "unhealthy"
	case exit.GetOomKilled():
		return "oom"
	case exit.GetCode() != 0:
		return "failed"
	}
	return "completed"
}
