package replicas

import (
	"context"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// decided counts the decisions of a tick, and traces it until the outcome of its proposal
// is known, with one span for each call that led to it.
func (l *Loop) decided(ctx context.Context, snap *state.Snapshot, tx *statev1.Transaction, began time.Time) (end func(state.Result, error)) {
	placed, moved, unplaced := map[uint32]int{}, map[uint32]int{}, 0 // by part
	var spans []*telemetry.Span
	traced := map[string]bool{}
	for _, change := range tx.GetChanges() {
		r := change.GetPut().GetReplica()
		if r == nil || spec.Ended(r.GetStatus().GetPhase()) {
			continue
		}
		switch r.GetStatus().GetPhase() {
		case spec.PhasePlaced:
			placed[change.GetPart()]++
			if r.GetSpec().GetReplaces().GetCause() == placement.CauseMoved && snap.Replica(r.GetMetadata().GetUid()) == nil {
				moved[change.GetPart()]++
			}
		case spec.PhasePending:
			unplaced++
		default:
			continue
		}
		if revision := r.GetSpec().GetRevisionUid(); l.Tracing != nil && !traced[revision] {
			traced[revision] = true
			if parent := telemetry.TraceOf(snap.Revision(revision), began); parent != "" {
				_, span := l.Tracing.StartAt(telemetry.WithTraceparent(ctx, parent), began, "schedule", "workload", r.GetSpec().GetWorkload())
				spans = append(spans, span)
			}
		}
	}
	took := time.Since(began)
	return func(result state.Result, err error) {
		if err != nil { // it will be decided again
			placed, moved, unplaced = nil, nil, 0
		}
		agreed := func(counts map[uint32]int) (all int) {
			for part, count := range counts {
				if result.LeftOut[part] == nil {
					all += count
				}
			}
			return all
		}
		all := agreed(placed)
		l.Metrics.Moved(agreed(moved))
		l.Metrics.Scheduled(all, unplaced, took)
		for _, span := range spans {
			span.End(err)
		}
	}
}
