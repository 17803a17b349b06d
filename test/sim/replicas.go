package sim

import (
	"errors"
	"time"

	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/state"
)

// replicaLoop is replicas.Loop without its goroutine. It drives the same engine, which
// follows the changes of the leader's store from the beginning of the term.
type replicaLoop struct {
	*loops
	engine replicas.Engine
	feed   *state.Subscription
	// lagged is whether it has missed changes.
	lagged bool
	// busy is set while a tick is planned or its proposal is in flight.
	busy bool
	// until is the time of the current timer, zero for none, and reached the last one that
	// elapsed.
	until, reached time.Time
	// unbalanced is whether it looks for replicas to move when a plan has been compared with its result.
	unbalanced bool
}

// begin reads the state, as the loop does when it starts and when it has lagged.
func (l *replicaLoop) begin() {
	var snap *state.Snapshot
	snap, l.feed = l.t.server.store.Subscribe()
	if l.t.w.flaw == Generous {
		snap = unlimited(l.t.server.store)
	}
	l.engine.Begin(snap)
}

// lead notes that a term of leases begins. Then it begins.
func (l *replicaLoop) lead() {
	s := l.t.server
	l.engine.Leases = leases{l.t.w, s.leases}
	l.engine.Leases.Begin(l.t.w.clock())
	if l.t.w.flaw != Deluded {
		l.engine.Traffic = traffic{l.t.w}
	}
	l.begin()
}

func (l *replicaLoop) wake() {
	if l.busy || l.dead {
		return
	}
	l.busy = true
	l.t.w.after(l.t.w.loopDelay(), l.tick)
}

func (l *replicaLoop) tick() {
	l.busy = false
	if l.dead || l.t.over {
		return
	}
	w, s := l.t.w, l.t.server
	snap, changes, err := l.feed.Newest()
	if l.lagged || errors.Is(err, state.ErrLagged) {
		l.lagged, changes = false, nil
		l.begin()
		snap = s.store.Snapshot()
	}
	l.follow(snap, changes)
	if w.flaw != Timeless {
		l.engine.Elapsed(latest(w.wall(s), l.reached))
	}
	l.reached = time.Time{}
	l.holdMoves()
	step := l.engine.Settle(w.wall(s), w.uidsOf(s))
	if step == nil {
		l.arm()
		return
	}
	l.propose(snap, step)
}

// holdMoves moves nothing while a plan is compared with its result.
func (l *replicaLoop) holdMoves() {
	due := &l.engine.Due.Rebalance
	switch w := l.t.w; {
	case w.tidy && *due:
		*due, l.unbalanced = false, true
		w.after(time.Minute, l.wake)
	case w.tidy && l.unbalanced:
		w.after(time.Minute, l.wake)
	case !w.tidy:
		*due, l.unbalanced = *due || l.unbalanced, false
	}
}

// follow lets the engine follow changes, as far as a flaw allows.
func (l *replicaLoop) follow(snap *state.Snapshot, changes []state.Change) {
	switch l.t.w.flaw {
	case Blind:
		changes = unnoticed(changes)
	case Petrified:
		changes = withoutCordons(changes)
	case Stuttering:
		changes = twice(changes)
	case Generous:
		snap, changes = unlimited(l.t.server.store), withoutNamespaces(changes)
	case Solitary:
		changes = withoutGroups(changes)
	case Lingering:
		defer overlookDrains(&l.engine, snap)
	case Asleep:
		defer keepAsleep(&l.engine, snap, changes)()
	}
	l.engine.Follow(snap, changes)
}

// propose asks the servers to agree on a step. If the state has moved on, everything stays
// due.
func (l *replicaLoop) propose(snap *state.Snapshot, step *replicas.Step) {
	w := l.t.w
	w.spoil(snap, step.Batch, w.uidsOf(l.t.server))
	w.checkPlacement(snap, step.Batch)
	l.busy = true
	var p *proposal
	p = l.t.propose("replicas", step.Batch, snap, func(err error) {
		if !l.settled(err) {
			return
		}
		if err == nil {
			l.engine.Agreed(step, p.tx, p.result)
		}
		l.busy = false
		l.wake()
	})
}

// arm sets a timer for what is due without a change. An elapsed timer counts even if the
// clock was set back meanwhile.
func (l *replicaLoop) arm() {
	w, next := l.t.w, l.engine.Next()
	if next.IsZero() || next.Equal(l.until) || w.flaw == Timeless {
		return
	}
	l.until = next
	w.after(max(time.Millisecond, next.Sub(w.wall(l.t.server))), func() {
		if l.dead || l.t.over || !l.until.Equal(next) {
			return
		}
		l.until, l.reached = time.Time{}, next
		l.wake()
	})
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
