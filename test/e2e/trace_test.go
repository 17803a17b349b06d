package e2e

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// spans is a collector that stores what it receives.
type spans struct {
	collector.UnimplementedTraceServiceServer

	mu      sync.Mutex
	byID    map[string]*tracev1.Span
	arrived chan struct{} // receives a value after new spans
}

func (s *spans) Export(_ context.Context, request *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				s.byID[hex.EncodeToString(span.GetSpanId())] = span
			}
		}
	}
	select {
	case s.arrived <- struct{}{}:
	default:
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// paths returns the paths from the spans of a name up to their roots, as far as they have arrived.
func (s *spans) paths(name string) (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.byID {
		if span.GetName() != name {
			continue
		}
		var path []string
		for trace := string(span.GetTraceId()); span != nil && string(span.GetTraceId()) == trace; {
			path = append(path, span.GetName())
			span = s.byID[hex.EncodeToString(span.GetParentSpanId())]
		}
		paths = append(paths, fmt.Sprint(path))
	}
	return paths
}

func (s *spans) names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.byID {
		names = append(names, span.GetName())
	}
	return names
}

func startCollector(t *testing.T) (*spans, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	received := &spans{byID: map[string]*tracev1.Span{}, arrived: make(chan struct{}, 1)}
	srv := grpc.NewServer()
	collector.RegisterTraceServiceServer(srv, received)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return received, "http://" + listener.Addr().String()
}

// The trace of one command reaches from the CLI to the container: each of these spans is a descendant of the one
// before it, and the command is their root.
func TestTraceReachesFromCommandToContainer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	received, endpoint := startCollector(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	address := freeAddress(t)
	ctx, cancel := context.WithTimeout(context.Background(), storyPatience)
	defer cancel()
	cloudless := func(args ...string) {
		t.Helper()
		cmd := bounded(ctx, filepath.Join(bin, "cloudless"), args...)
		cmd.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+filepath.Join(dir, "config.yaml"), "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("cloudless %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	cloudless("up", "--detach", "--data-dir", data, "--api-addr", address)
	defer cloudless("down", "--purge", "--data-dir", data)
	cloudless("run", filepath.Join(bin, "hello"), "--name", "web")

	const create = "/cloudless.v1.WorkloadService/CreateWorkload"
	call := []string{"serve " + create, "call " + create, "cloudless run"}
	for name, below := range map[string][]string{
		"propose":        call,
		"schedule":       call,
		"assign":         call,
		"start replica":  call,
		"driver prepare": append([]string{"start replica"}, call...),
		"driver start":   append([]string{"start replica"}, call...),
	} {
		want := fmt.Sprint(append([]string{name}, below...))
		for deadline := time.After(patience); !slices.Contains(received.paths(name), want); {
			select {
			case <-received.arrived:
			case <-deadline:
				t.Fatalf("the paths from %q to the root are %v, want %s; the spans are %q", name, received.paths(name), want, received.names())
			}
		}
	}
}

// A collector that does not answer does not disturb commands.
func TestCommandsWorkWithoutCollector(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	silent := freeAddress(t) // nothing listens there
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := bounded(ctx, filepath.Join(bin, "cloudless"), "version")
	cmd.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+filepath.Join(t.TempDir(), "config.yaml"), "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+silent)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if out, err := cmd.Output(); err != nil || len(out) == 0 || stderr.Len() > 0 {
		t.Errorf("version ended with %v, stdout %q, stderr %q", err, out, stderr.String())
	}
}
