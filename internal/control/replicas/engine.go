package replicas

import (
	"slices"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Engine decides what becomes of replicas. It keeps from change to change what is dear
// to read anew: the scheduler's view, the tallies of workloads, and who waits for what.
//
// It has neither a clock nor a feed nor a log. The leader's loop, a forecast and the
// simulator (test/sim) each bring their own, and drive it in the same way: Begin with a
// state, Follow all changes after it, then Settle and propose until nothing is due.
// It is for one goroutine, and its zero value has to Begin first.
type Engine struct {
	// Due is what the next Settle looks at. Begin, Follow and Elapsed add to it.
	Due Due

	// snap is the state up to which everything was followed.
	snap    *state.Snapshot
	cluster *cluster
	memory  memory
}

// Begin forgets what was before and reads a state. Everything in it is due.
func (e *Engine) Begin(snap *state.Snapshot) {
	e.snap, e.cluster = snap, newCluster(snap)
	e.Due = e.memory.begin(snap)
}

// Follow brings the engine from the state before to a snapshot by the changes in
// between. It makes due what they concern, and what waited and may fit now.
func (e *Engine) Follow(snap *state.Snapshot, changes []state.Change) {
	e.snap = snap
	e.cluster.follow(snap, changes)
	due := e.memory.after(changes)
	due.Placement = false // what waits is woken by name
	for _, uid := range e.cluster.view.Wake() {
		due.Workloads[uid] = true
	}
	e.Due.add(due)
}

// Next is when something is due without a change, zero if nothing will be.
func (e *Engine) Next() time.Time { return e.memory.next() }

// Elapsed makes due what was to be looked at until a time.
func (e *Engine) Elapsed(until time.Time) { e.Due.add(e.memory.elapsed(until)) }

// Step is what Settle has decided. It is to be proposed, and Agreed is to be called
// if the servers have agreed on it. If the state has moved on instead, all that was due
// still is: Follow the changes and Settle again.
type Step struct {
	Batch *state.Batch

	left    Due
	decided []decision
}

// Settle decides what brings what is due one step nearer to what is desired. It
// returns nil when there is nothing to do. newUID is the only source of identity, now
// the only clock.
func (e *Engine) Settle(now time.Time, newUID func() string) *Step {
	if e.Due.Empty() {
		return nil
	}
	batch, left := e.cluster.tick(now, e.snap, e.Due, newUID)
	e.memory.keep(left)
	if batch.Len() == 0 {
		e.Due = Due{}
		return nil
	}
	return &Step{Batch: batch, left: left, decided: e.cluster.decided}
}

// Agreed notes that a step was committed, before its changes are followed. What did not
// fit into it, and what the commit has left out, is due.
func (e *Engine) Agreed(s *Step, tx *statev1.Transaction, result state.Result) {
	e.Due = s.left
	e.Due.add(handedBack(tx, result))
	for r := range leftOut(tx, result) {
		s.decided = slices.DeleteFunc(s.decided, func(d decision) bool { return d.replica == r.GetMetadata().GetUid() })
	}
}
