package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/agent"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// instruments are the metrics and traces of a process.
type instruments struct {
	registry *telemetry.Registry
	tracing  *telemetry.Tracing // nil without a collector
	// agent returns the metrics that all successive agents of this process share.
	agent func() *telemetry.Agent
}

// flushPatience limits how long a stopping process waits to export its last spans.
const flushPatience = 2 * time.Second

func openInstruments(ctx context.Context, process local.Process, service string, logger *slog.Logger, u *undo) (*instruments, error) {
	u.add(datadir.BoundLog(process.DataDir, os.Stderr, logger))
	tracing, err := telemetry.OpenTracing(ctx, telemetry.TraceOptions{
		Endpoint: process.OTLPEndpoint, Service: service, Version: process.Version, Logger: logger,
	})
	if err != nil {
		return nil, err
	}
	u.add(func() {
		patience, cancel := context.WithTimeout(context.Background(), flushPatience)
		defer cancel()
		tracing.Close(patience)
	})
	registry := telemetry.NewRegistry()
	return &instruments{
		registry: registry, tracing: tracing,
		agent: sync.OnceValue(func() *telemetry.Agent { return telemetry.NewAgent(registry) }),
	}, nil
}

// metricsSocket is where an agent without a server serves its metrics. It opens no port: the file's mode decides who may
// read them.
const metricsSocket = "metrics.sock"

// serveAgentMetrics serves the metrics of an agent without a server in its process, until ctx ends.
func serveAgentMetrics(ctx context.Context, dir string, i *instruments, a *agent.Agent) error {
	i.registry.Collect(telemetry.ReplicaUsage(), func(emit telemetry.Emit) { telemetry.EmitReplicas(emit, a.Usage(ctx)) })
	socket, err := listenPrivately(ctx, filepath.Join(dir, metricsSocket))
	if err != nil {
		return fmt.Errorf("show metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", i.registry.Handler())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("show metrics: %w", err)
	}
	return nil
}

// listenPrivately creates a socket that only this user can open, from the first moment on. This process holds the
// folder, so an existing socket is left from an earlier process.
func listenPrivately(ctx context.Context, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	// It is created in a private folder and moved later, so that no other user can open it before its mode is set.
	nursery, err := os.MkdirTemp(filepath.Dir(path), ".metrics-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(nursery) }()
	hidden := filepath.Join(nursery, "s")
	socket, err := (&net.ListenConfig{}).Listen(ctx, "unix", hidden)
	if err != nil {
		return nil, err
	}
	socket.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(hidden, 0o600)
	if err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return removedOnClose{socket, path}, nil
}

// removedOnClose removes the socket's file on Close.
type removedOnClose struct {
	net.Listener
	path string
}

func (l removedOnClose) Close() error {
	err := os.Remove(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, l.Listener.Close())
}
