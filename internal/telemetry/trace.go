package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// OTLPEndpointEnv names the environment variable that says where traces go.
const OTLPEndpointEnv = "OTEL_EXPORTER_OTLP_ENDPOINT"

// exportTimeout bounds one attempt to send spans to the collector.
const exportTimeout = 5 * time.Second

// TraceOptions say what is traced and where the spans go.
type TraceOptions struct {
	// Endpoint of an OTLP collector with gRPC, such as http://127.0.0.1:4317. The default
	// scheme is http.
	Endpoint string
	// Service names the process among others, Version its release.
	Service, Version string
	Logger           *slog.Logger
}

// Tracing creates spans and sends them to a collector. A nil *Tracing, which OpenTracing
// returns without an endpoint, does nothing.
type Tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// CheckEndpoint refuses what cannot be the address of a collector.
func CheckEndpoint(endpoint string) error {
	_, err := endpointURL(endpoint)
	return err
}

func endpointURL(endpoint string) (string, error) {
	full := endpoint
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", fmt.Errorf("%q is not the address of an OTLP collector: use one such as http://127.0.0.1:4317", endpoint)
	}
	return full, nil
}

// OpenTracing does not connect yet; an unreachable collector is no error.
func OpenTracing(ctx context.Context, o TraceOptions) (*Tracing, error) {
	if o.Endpoint == "" {
		return nil, nil
	}
	full, err := endpointURL(o.Endpoint)
	if err != nil {
		return nil, err
	}
	exporter, err := otlptracegrpc.New(ctx,
		otlptracegrpc.WithEndpointURL(full),
		otlptracegrpc.WithTimeout(exportTimeout),
		// Spans that cannot be delivered are dropped: they are hints, not records.
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false}))
	if err != nil {
		return nil, fmt.Errorf("send traces to %s: %w", o.Endpoint, err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", o.Service), attribute.String("service.version", o.Version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("describe this process for traces: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about),
		sdktrace.WithBatcher(&quietExporter{SpanExporter: exporter, logger: o.Logger, endpoint: o.Endpoint}, sdktrace.WithBatchTimeout(time.Second)))
	return &Tracing{provider: provider, tracer: provider.Tracer("cloudless")}, nil
}

// Close sends the remaining spans, as far as ctx allows.
func (t *Tracing) Close(ctx context.Context) {
	if t != nil {
		_ = t.provider.Shutdown(ctx) // the exporter has logged any error
	}
}

// quietExporter hides the failures of a collector: OpenTelemetry would print each of them
// to the standard error of the process.
type quietExporter struct {
	sdktrace.SpanExporter
	logger   *slog.Logger
	endpoint string
	failing  atomic.Bool
}

func (e *quietExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if failed := err != nil; e.failing.Swap(failed) != failed && e.logger != nil { // once for each change
		if failed {
			e.logger.WarnContext(ctx, "traces cannot be delivered and are dropped", "endpoint", e.endpoint, "error", err)
		} else {
			e.logger.InfoContext(ctx, "traces are delivered again", "endpoint", e.endpoint)
		}
	}
	return nil
}

func (e *quietExporter) Shutdown(ctx context.Context) error {
	_ = e.SpanExporter.Shutdown(ctx)
	return nil
}

// Span is a part of a trace. A nil *Span does nothing.
type Span struct{ span trace.Span }

// SpanKind says on which side of a call a span is.
type SpanKind = trace.SpanKind

// The sides of a call.
const (
	SpanInternal = trace.SpanKindInternal
	SpanClient   = trace.SpanKindClient
	SpanServer   = trace.SpanKindServer
)

// Start begins a span below the one in ctx. Attributes are pairs of a name and
// a value.
func (t *Tracing) Start(ctx context.Context, kind SpanKind, name string, attributes ...string) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	return t.start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(pairs(attributes)...))
}

// StartAt is Start for something that began earlier.
func (t *Tracing) StartAt(ctx context.Context, began time.Time, name string, attributes ...string) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	return t.start(ctx, name, trace.WithTimestamp(began), trace.WithAttributes(pairs(attributes)...))
}

func (t *Tracing) start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, *Span) {
	ctx, span := t.tracer.Start(ctx, name, options...)
	return ctx, &Span{span}
}

func pairs(attributes []string) []attribute.KeyValue {
	var all []attribute.KeyValue
	for i := 0; i+1 < len(attributes); i += 2 {
		all = append(all, attribute.String(attributes[i], attributes[i+1]))
	}
	return all
}

// End ends the span, with its error if any.
func (s *Span) End(err error) {
	if s == nil {
		return
	}
	if err != nil {
		s.span.RecordError(err)
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}

// traceparent is the metadata key of W3C traces.
const traceparent = "traceparent"

// Traceparent is the span in ctx in W3C format, empty if there is none.
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[traceparent]
}

// WithTraceparent continues another process's trace. An invalid traceparent changes
// nothing.
func WithTraceparent(ctx context.Context, parent string) context.Context {
	if parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{traceparent: parent})
}

// Traced reports whether ctx belongs to a trace.
func Traced(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

func traceID(ctx context.Context) string {
	if of := trace.SpanContextFromContext(ctx); of.IsValid() {
		return of.TraceID().String()
	}
	return ""
}

// freshness is how long after a call its results still belong to its trace. The caller does
// not wait for restarts days later.
const freshness = 10 * time.Minute

// TraceOf is the trace of the call that made a revision, empty if that was not
// traced or is long ago.
func TraceOf(revision *v1.Revision, now time.Time) string {
	trace := revision.GetSpec().GetTrace()
	if trace == "" || now.Sub(revision.GetMetadata().GetCreateTime().AsTime()) > freshness {
		return ""
	}
	return trace
}
