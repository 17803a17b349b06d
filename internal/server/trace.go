package server

import (
	"context"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// traceAssignments traces what is sent to a node, until it has been sent.
func (s *Server) traceAssignments(ctx context.Context, message *v1.Assignments) (end func(error)) {
	if s.Tracing == nil || message.GetFull() {
		return func(error) {}
	}
	var spans []*telemetry.Span
	for _, a := range message.GetAssign() {
		if parent := telemetry.TraceOf(a.GetRevision(), time.Now()); parent != "" {
			_, span := s.Tracing.Start(telemetry.WithTraceparent(ctx, parent), telemetry.SpanInternal, "assign",
				"replica", a.GetReplica().GetMetadata().GetName(), "node", a.GetReplica().GetSpec().GetNode())
			spans = append(spans, span)
		}
	}
	return func(err error) {
		for _, span := range spans {
			span.End(err)
		}
	}
}
