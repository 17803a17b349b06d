package sim

import (
	"time"

	"github.com/cloudless/cloudless/internal/control/autoscale"
	"github.com/cloudless/cloudless/internal/control/retention"
	"github.com/cloudless/cloudless/internal/control/servers"
	"github.com/cloudless/cloudless/internal/state"
)

// loops are the leader's loops. When one fails they all begin again.
type loops struct {
	t        *term
	dead     bool
	replicas *replicaLoop
	nodes    *nodeLoop
	crons    *cronLoop
	// memory is that of the loop of autoscaling.
	memory *autoscale.Memory
}

// loopPause is how long the leader waits before its loops begin again.
const loopPause = time.Second

// begin starts the loops, which know nothing but the state.
func (t *term) begin() {
	l := &loops{t: t}
	t.loops = l
	l.nodes = &nodeLoop{loops: l, since: t.w.now}
	if t.w.flaw == Hasty {
		l.nodes.since -= time.Hour
	}
	t.server.watch.take()
	t.server.watch.resume(t.w, t.server.store.Snapshot())
	l.replicas = &replicaLoop{loops: l}
	l.replicas.lead()
	l.replicas.wake()
	l.nodes.wake()
	_, cronFeed := t.server.store.Subscribe()
	l.crons = &cronLoop{loops: l, feed: cronFeed}
	l.crons.plan(0)
	l.tickServers()
	t.w.after(5*time.Second, l.tickServers)
	l.retain()
	t.w.after(scoreEvery, l.keepScores)
	l.memory = autoscale.NewMemory()
	t.w.after(autoscaleEvery, l.autoscale)
}

// settled handles the outcome of a loop's proposal: the loop goes on, or all loops begin
// again.
func (l *loops) settled(err error) bool {
	if l.dead || l.t.over {
		return false
	}
	if err == nil || state.MovedOn(err) {
		return true
	}
	l.dead = true
	l.t.w.troubled()
	l.t.w.note("the loops begin again: %v", err)
	l.t.w.after(loopPause, func() {
		if !l.t.over {
			l.t.begin()
		}
	})
	return false
}

// loopDelay is how long a loop takes to wake up.
func (w *World) loopDelay() time.Duration {
	if w.tidy {
		return time.Millisecond
	}
	return w.between(0, 5*time.Millisecond)
}

// nodeLoop is nodes.Loop without its goroutine. Its observations belong to the server, see
// watch.
type nodeLoop struct {
	*loops
	since time.Duration
	busy  bool
	// woken is set when there is news while a proposal is in flight.
	woken bool
	// timer is the number of the valid timer.
	timer int
}

func (l *nodeLoop) wake() {
	if l.busy || l.dead {
		l.woken = true
		return
	}
	l.busy = true
	l.t.w.after(l.t.w.loopDelay(), l.tick)
}

func (l *nodeLoop) tick() {
	l.busy, l.woken = false, false
	if l.dead || l.t.over {
		return
	}
	w := l.t.w
	snap := l.t.server.store.Snapshot()
	if w.flaw == Lenient {
		return
	}
	if w.flaw != Deaf {
		l.t.hear()
	}
	batch, next := l.t.server.watch.tick(w, l, snap)
	l.timer++
	if batch.Len() == 0 {
		l.arm(next)
		return
	}
	w.checkNodes(l.t, snap, batch)
	l.busy = true
	l.t.propose("nodes", batch, snap, func(err error) {
		if l.settled(err) {
			l.busy = false
			if err != nil || l.woken {
				l.wake()
				return
			}
			l.arm(next)
		}
	})
}

// arm plans the next tick without news. It needs none while every node is heard that should
// be: their heartbeats would postpone it each time.
func (l *nodeLoop) arm(next time.Time) {
	w := l.t.w
	if next.IsZero() || l.t.allHeard() {
		return
	}
	timer := l.timer
	// A tick that is due at once waits for heartbeats in transit.
	w.after(max(time.Millisecond, next.Sub(w.clock())), func() {
		if timer == l.timer {
			l.wake()
		}
	})
}

// tickServers is one tick of the loop of servers. It comes with an election and
// whenever a server has come back.
func (l *loops) tickServers() {
	if l.dead || l.t.over {
		return
	}
	w := l.t.w
	var seen []servers.Seen
	for _, s := range w.servers {
		if s.up && s != l.t.server {
			seen = append(seen, servers.Seen{UID: s.uid, Address: s.address, Version: "sim"})
		}
	}
	snap := l.t.server.store.Snapshot()
	self := servers.Self{Seen: servers.Seen{UID: l.t.server.uid, Address: l.t.server.address, Version: "sim"}, Name: l.t.server.name}
	if batch := servers.Tick(snap, self, seen); batch.Len() > 0 {
		l.t.propose("servers", batch, snap, func(err error) {
			if l.settled(err) && err != nil {
				l.tickServers()
			}
		})
	}
}

// retentionEvery is longer than in the product, because most ticks do nothing.
const retentionEvery = 5 * time.Minute

// retain is the loop of retention: it ticks, and again after a while.
func (l *loops) retain() {
	if l.dead || l.t.over {
		return
	}
	w, s := l.t.w, l.t.server
	again := func() { w.after(retentionEvery, l.retain) }
	snap := s.store.Snapshot()
	now := s.clock.Look(w.wall(s), w.now-s.begun)
	batch := retention.Tick(now, snap, w.limits(snap))
	switch w.flaw {
	case Greedy:
		grab(snap, batch)
	case Amnesic:
		forget(snap, batch)
	}
	if batch.Len() == 0 {
		again()
		return
	}
	w.checkRetention(now, snap, batch)
	l.t.propose("retention", batch, snap, func(err error) {
		if l.settled(err) {
			again()
		}
	})
}
