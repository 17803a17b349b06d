package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// spans is a collector.
type spans struct {
	collectorv1.UnimplementedTraceServiceServer
	mu  sync.Mutex
	got []*tracev1.Span
}

func (s *spans) Export(_ context.Context, request *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			s.got = append(s.got, scope.GetSpans()...)
		}
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

func startCollector(t *testing.T) (*spans, string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, received := grpc.NewServer(), &spans{}
	collectorv1.RegisterTraceServiceServer(srv, received)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(listener) })
	t.Cleanup(func() {
		srv.Stop()
		serving.Wait()
	})
	return received, listener.Addr().String()
}

func TestSpansReachTheCollectorAndNameTheirParents(t *testing.T) {
	received, endpoint := startCollector(t)
	tracing, err := OpenTracing(t.Context(), TraceOptions{Endpoint: endpoint, Service: "test", Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	root, command := tracing.Start(t.Context(), SpanInternal, "command", "key", "value")
	// Over the wire, as gRPC metadata, and on as text in the state.
	served, call := tracing.Serve(metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", Traceparent(root))), "/m", true)
	kept := Traceparent(served)
	_, start := tracing.StartAt(WithTraceparent(t.Context(), kept), time.Now().Add(-time.Second), "start")
	start.End(errors.New("no such image"))
	call.End(nil)
	command.End(nil)
	// A stream without a trace begins none.
	if _, none := tracing.Serve(t.Context(), "/session", true); none != nil {
		t.Error("a stream without a trace is traced")
	}
	tracing.Close(t.Context())

	byName := map[string]*tracev1.Span{}
	for _, span := range received.got {
		byName[span.GetName()] = span
	}
	if len(received.got) != 3 {
		t.Fatalf("received %v", received.got)
	}
	for child, parent := range map[string]string{"serve /m": "command", "start": "serve /m"} {
		if !bytes.Equal(byName[child].GetParentSpanId(), byName[parent].GetSpanId()) || !bytes.Equal(byName[child].GetTraceId(), byName["command"].GetTraceId()) {
			t.Errorf("%s is not below %s", child, parent)
		}
	}
	if got := byName["start"].GetStatus(); got.GetCode() != tracev1.Status_STATUS_CODE_ERROR || got.GetMessage() != "no such image" {
		t.Errorf("the failed span ended with %v", got)
	}
}

// Without an endpoint there is nothing: no provider, no interceptor, no garbage.
func TestNothingIsTracedWithoutAnEndpoint(t *testing.T) {
	tracing, err := OpenTracing(t.Context(), TraceOptions{Service: "test"})
	if tracing != nil || err != nil {
		t.Fatalf("opened %v, %v", tracing, err)
	}
	if options := tracing.DialOptions(); options != nil {
		t.Errorf("a connection has %d more options", len(options))
	}
	ctx := t.Context()
	allocated := testing.AllocsPerRun(100, func() {
		called, span := tracing.Start(ctx, SpanInternal, "command")
		_, served := tracing.Serve(called, "/m", false)
		served.End(nil)
		span.End(nil)
	})
	if allocated != 0 {
		t.Errorf("it allocates %v times", allocated)
	}
	if Traceparent(ctx) != "" || Traced(WithTraceparent(ctx, "")) || Traced(WithTraceparent(ctx, "garbage")) {
		t.Error("there is a trace out of nothing")
	}
	tracing.Close(ctx)
}

// An unreachable collector is logged once, and delays nothing.
func TestUnreachableCollectorDisturbsNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	var log bytes.Buffer
	tracing, err := OpenTracing(t.Context(), TraceOptions{Endpoint: "http://" + address, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		_, span := tracing.Start(t.Context(), SpanInternal, "command")
		span.End(nil)
		_ = tracing.provider.ForceFlush(t.Context())
	}
	tracing.Close(t.Context())
	if said := strings.Count(log.String(), "cannot be delivered"); said != 1 {
		t.Errorf("it was said %d times: %s", said, log.String())
	}
}

func TestCheckEndpoint(t *testing.T) {
	for endpoint, fine := range map[string]bool{
		"http://127.0.0.1:4317": true, "https://otel.example": true, "127.0.0.1:4317": true, "otel.example:4317": true,
		"": false, "http://": false, "ftp://x": false, "http://x:port": false, "%%": false,
	} {
		if err := CheckEndpoint(endpoint); (err == nil) != fine {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

func TestTraceOfARevisionExpires(t *testing.T) {
	now := time.Now()
	made := func(ago time.Duration, trace string) *v1.Revision {
		return &v1.Revision{Metadata: &v1.Metadata{CreateTime: timestamppb.New(now.Add(-ago))}, Spec: &v1.RevisionSpec{Trace: trace}}
	}
	if TraceOf(made(time.Minute, "x"), now) != "x" || TraceOf(made(time.Hour, "x"), now) != "" || TraceOf(made(0, ""), now) != "" || TraceOf(nil, now) != "" {
		t.Error("a trace is continued that has long ended, or a new one is not")
	}
}
