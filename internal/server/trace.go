package server

import (
	"context"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// agree proposes a transaction. Where the call is traced, the revisions in it
// carry the trace on to whoever makes them run.
func (s *Server) agree(ctx context.Context, tx *statev1.Transaction) error {
	if s.tracing == nil || !telemetry.Traced(ctx) {
		_, err := s.consensus.Propose(ctx, tx)
		return err
	}
	parent := telemetry.Traceparent(ctx)
	for _, change := range tx.GetChanges() {
		if revision := change.GetPut().GetRevision(); revision.GetSpec() != nil && revision.GetMetadata().GetVersion() == 0 {
			revision.Spec.Trace = parent
		}
	}
	ctx, span := s.tracing.Start(ctx, telemetry.SpanInternal, "propose")
	_, err := s.consensus.Propose(ctx, tx)
	span.End(err)
	return err
}

// traceAssignments traces what is sent to a node, until it has been sent.
func (s *Server) traceAssignments(ctx context.Context, message *v1.Assignments) (end func(error)) {
	if s.tracing == nil || message.GetFull() {
		return func(error) {}
	}
	var spans []*telemetry.Span
	for _, a := range message.GetAssign() {
		if parent := telemetry.TraceOf(a.GetRevision(), time.Now()); parent != "" {
			_, span := s.tracing.Start(telemetry.WithTraceparent(ctx, parent), telemetry.SpanInternal, "assign",
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
