package sessions

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// How many events a node may have noticed at once, and how long it takes until it
// may notice one more: events are kept by number, and a node that tells too much
// must not push out what others tell.
const (
	noticedBurst = 32
	noticedEvery = 2 * time.Second
)

// noticed is what a node has told and is not written yet, and what it may still
// tell.
type noticed struct {
	events []*v1.EventReport
	tokens int
	filled time.Time // until when tokens were counted
}

// allow takes one token, if there is one.
func (n *noticed) allow(now time.Time) bool {
	if grown := int(now.Sub(n.filled) / noticedEvery); grown > 0 {
		n.tokens = min(noticedBurst, n.tokens+grown)
		n.filled = n.filled.Add(time.Duration(grown) * noticedEvery)
	}
	if n.tokens == 0 {
		return false
	}
	n.tokens--
	return true
}

// submitEvents takes what a node has noticed. What is too much is dropped.
func (r *reports) submitEvents(node string, events []*v1.EventReport, now time.Time) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.noticed[node]
	if of == nil {
		of = &noticed{tokens: noticedBurst, filled: now}
		r.noticed[node] = of
	}
	for _, e := range events {
		if of.allow(now) {
			of.events = append(of.events, e)
		}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// takeNoticed returns what waits to be written, by node.
func (r *reports) takeNoticed() map[string][]*v1.EventReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := map[string][]*v1.EventReport{}
	for node, of := range r.noticed {
		if len(of.events) > 0 {
			taken[node] = of.events
			of.events = nil
		}
	}
	return taken
}

// writeNoticed makes events of what nodes have noticed.
func (s *Sessions) writeNoticed(ctx context.Context, byNode map[string][]*v1.EventReport) error {
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			for _, e := range byNode[node] {
				s.noteOne(snap, b, node, e)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// noteOne adds one event if it is about the node or a replica of the node's.
func (s *Sessions) noteOne(snap *state.Snapshot, b *state.Batch, nodeUID string, e *v1.EventReport) {
	node := snap.Node(nodeUID)
	if node == nil || e.GetReason() == "" {
		return
	}
	about := state.Object(node)
	if uid := e.GetReplicaUid(); uid != "" {
		r := snap.Replica(uid)
		if r == nil || r.GetSpec().GetNodeUid() != nodeUID {
			return
		}
		about = r
	}
	severity := state.SeverityInfo
	if e.GetSeverity() == state.SeverityWarning {
		severity = state.SeverityWarning
	}
	b.Create(state.NewEvent(state.NewUID(), s.Now(), about, severity, e.GetReason(), brief(e.GetMessage()), "node/"+node.GetMetadata().GetName()))
}
