package sessions

import (
	"context"
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// A node may report eventBurst events at once, and one more every eventEvery. The cluster
// keeps a limited number of events: a noisy node must not displace those of others.
const (
	eventBurst = 32
	eventEvery = 2 * time.Second
)

// nodeEvents are the events of a node that are not written yet, and its tokens for more.
type nodeEvents struct {
	waiting  []*v1.EventReport
	tokens   int
	refilled time.Time
}

// allow takes a token and reports whether there was one.
func (n *nodeEvents) allow(now time.Time) bool {
	if earned := int(now.Sub(n.refilled) / eventEvery); earned > 0 {
		n.tokens = min(eventBurst, n.tokens+earned)
		n.refilled = n.refilled.Add(time.Duration(earned) * eventEvery)
	}
	if n.tokens == 0 {
		return false
	}
	n.tokens--
	return true
}

// submitEvents queues the events that a node reports. It drops those beyond the node's limit.
func (r *reports) submitEvents(node string, events []*v1.EventReport, now time.Time) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.events[node]
	if of == nil {
		of = &nodeEvents{tokens: eventBurst, refilled: now}
		r.events[node] = of
	}
	for _, e := range events {
		if of.allow(now) {
			of.waiting = append(of.waiting, e)
		}
	}
	r.signal()
}

// takeEvents returns and clears the queued events, by node.
func (r *reports) takeEvents() map[string][]*v1.EventReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := map[string][]*v1.EventReport{}
	for node, of := range r.events {
		if len(of.waiting) > 0 {
			taken[node] = of.waiting
			of.waiting = nil
		}
	}
	return taken
}

// writeEvents writes the events that nodes have reported.
func (s *Sessions) writeEvents(ctx context.Context, byNode map[string][]*v1.EventReport) error {
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
			for _, e := range byNode[node] {
				s.addEvent(snap, b, node, e)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// addEvent adds an event to a batch if it is about the node or one of its replicas.
func (s *Sessions) addEvent(snap *state.Snapshot, b *state.Batch, nodeUID string, e *v1.EventReport) {
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
	b.Create(state.NewEvent(state.NewUID(), s.Now(), about, severity, e.GetReason(), shorten(e.GetMessage()), "node/"+node.GetMetadata().GetName()))
}
