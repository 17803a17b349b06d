package replicas

import (
	"slices"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/state"
)

// Engine decides what to do with replicas. From change to change it keeps what is expensive
// to read again: the scheduler's view, the tallies of workloads, and which workloads wait
// for what.
//
// It has no clock, feed or log. The leader's loop, a forecast and the simulator (test/sim)
// each bring their own and drive it in the same way: Begin with a state, Follow all changes
// after it, then Settle and propose until nothing is due. It is for one goroutine. Call
// Begin first.
type Engine struct {
	// Due is what the next Settle examines. Begin, Follow and Elapsed add to it.
	Due Due
	// Leases holds back the replacement of singletons. If it is nil, no lease is valid.
	Leases Leases
	// Traffic judges canaries by their requests. If it is nil, nobody counts them.
	Traffic Traffic

	// snap is the newest state that was followed.
	snap    *state.Snapshot
	cluster *cluster
	memory  memory
}

// Begin discards everything and reads a state. Everything in it is due.
func (e *Engine) Begin(snap *state.Snapshot) {
	e.snap, e.cluster = snap, newCluster(snap)
	e.cluster.leases, e.cluster.traffic = e.Leases, e.Traffic
	e.Due = e.memory.begin(snap)
	e.Due.Rebalance = true
}

// Follow applies the changes up to a snapshot. It makes due the objects that changed, and
// the waiting workloads that may fit now.
func (e *Engine) Follow(snap *state.Snapshot, changes []state.Change) {
	e.snap = snap
	e.cluster.follow(snap, changes)
	due := e.memory.after(changes)
	followDrains(snap, changes, &due)
	due.Placement = false // waiting workloads are woken by name
	for _, uid := range e.cluster.View.Wake() {
		due.Workloads[uid] = true
	}
	wakeForSecrets(snap, changes, &due)
	for _, change := range changes {
		if change.Kind == state.KindCluster && rebalanceChanged(change) {
			due.Rebalance = true
		}
		if change.Kind == state.KindCluster && failoverChanged(change) {
			for uid := range e.cluster.pace.deferred {
				due.Workloads[uid] = true
			}
		}
	}
	e.Due.add(due)
}

// wakeForSecrets makes the workloads due that use a changed secret: their replicas may have waited for it.
func wakeForSecrets(snap *state.Snapshot, changes []state.Change, due *Due) {
	for _, c := range changes {
		changed, _ := c.New.(*v1.Secret)
		if changed == nil {
			continue
		}
		for w := range snap.Workloads(changed.GetMetadata().GetNamespace(), "") {
			if secret.Uses(w.GetSpec(), changed.GetMetadata().GetName()) {
				due.Workloads[w.GetMetadata().GetUid()] = true
			}
		}
	}
}

// Next is when something becomes due without a change. It is zero if nothing will.
func (e *Engine) Next() time.Time {
	next, look := e.memory.next(), e.cluster.balance.next
	if next.IsZero() || !look.IsZero() && look.Before(next) {
		return look
	}
	return next
}

// Elapsed makes due whatever was scheduled up to a time.
func (e *Engine) Elapsed(until time.Time) {
	due := e.memory.elapsed(until)
	due.Rebalance = e.cluster.balance.elapsed(until)
	e.Due.add(due)
}

// Step is the result of Settle. Propose it, and call Agreed once the servers have agreed on
// it. If the state has moved on instead, everything is still due: Follow the changes and
// Settle again.
type Step struct {
	Batch *state.Batch

	left    Due
	decided []placement.Decision
	// announcesLimit is whether an event says that lost replicas wait for their turn.
	announcesLimit bool
}

// Backlog is how many lost replicas waited for their turn after the last Settle.
func (e *Engine) Backlog() int { return e.cluster.pace.backlog() }

// Settle decides the next step from the actual to the desired state of what is due. It
// returns nil when there is nothing to do. newUID is its only source of identity, now its
// only clock.
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
	return &Step{Batch: batch, left: left, decided: e.cluster.decided, announcesLimit: e.cluster.pace.announcing}
}

// Agreed notes that a step was committed, before its changes are followed. Whatever did not
// fit into the step, and whatever the commit left out, stays due.
func (e *Engine) Agreed(s *Step, tx *statev1.Transaction, result state.Result) {
	e.Due = s.left
	e.cluster.pace.announced = e.cluster.pace.announced || s.announcesLimit
	e.Due.add(handedBack(tx, result))
	for r := range leftOut(tx, result) {
		s.decided = slices.DeleteFunc(s.decided, func(d placement.Decision) bool { return d.Replica == r.GetMetadata().GetUid() })
	}
}
