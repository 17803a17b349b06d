package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/state"
)

// term is one term of a leader, with everything that only a leader has.
type term struct {
	w      *World
	server *server
	since  time.Duration
	over   bool
	// frozen is set when the leader has no majority and does not know yet.
	frozen bool

	flight     []*proposal
	lastCommit time.Duration
	loops      *loops
	sessions   map[string]*session // by node uid
	met        map[string]bool     // nodes that had a session
	// feed wakes the sessions.
	feed *state.Subscription
	// reports wait to be written, ordered by node and replica.
	reports map[reported]*v1.ReplicaStatus
	writing bool
}

type reported struct{ node, replica string }

// ended makes a subscription return what is there instead of waiting.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// elect makes one of the servers that are up the leader, if they are a majority.
func (w *World) elect() {
	if w.leader != nil || w.electing {
		return
	}
	w.electing = true
	w.after(w.electionTime(), func() {
		w.electing = false
		var up []*server
		for _, s := range w.servers {
			if s.up && s != w.isolated {
				up = append(up, s)
			}
		}
		if 2*len(up) <= len(w.servers) {
			return // a returning server starts another election
		}
		w.lead(up[w.rng.IntN(len(up))])
	})
}

// electionTime is how long servers take to notice that there is no leader, and to elect
// one.
func (w *World) electionTime() time.Duration {
	if w.flaw == Undecided {
		return 10 * time.Minute
	}
	return w.between(100*time.Millisecond, 1500*time.Millisecond)
}

func (w *World) lead(s *server) {
	w.follow(s)
	t := &term{
		w: w, server: s, since: w.now, lastCommit: w.now,
		sessions: map[string]*session{}, met: map[string]bool{}, reports: map[reported]*v1.ReplicaStatus{},
	}
	w.leader = t
	w.log.index++ // a new leader writes an entry of its own
	for _, p := range w.inherited {
		t.inherit(p)
	}
	w.inherited = nil
	w.note("server %s leads", s.name)
	_, t.feed = s.store.Subscribe()
	t.begin()
	w.callAll()
}

// depose ends the leader's term. Some of its proposals in flight are committed all the
// same; no client learns which.
func (w *World) depose(why string) {
	t := w.leader
	if t == nil {
		return
	}
	w.note("server %s leads no more: %s", t.server.name, why)
	w.disturbed()
	t.over, w.leader = true, nil
	if t.loops != nil {
		t.loops.dead = true
	}
	agreed := w.rng.IntN(len(t.flight) + 1)
	if t.frozen {
		agreed = 0 // no other server has it
	}
	for i, p := range t.flight {
		if i < agreed {
			w.inherited = append(w.inherited, p)
		}
	}
	for _, p := range t.flight {
		p.done(errUncertain)
	}
	for _, uid := range slices.Sorted(maps.Keys(t.sessions)) {
		t.sessions[uid].closeAtServer("the server does not lead any more")
	}
	w.elect()
}

// published notifies everything at the leader of changes.
func (t *term) published() {
	changes, err := t.feed.Next(ended)
	if errors.Is(err, state.ErrLagged) {
		_, t.feed = t.server.store.Subscribe()
		for _, uid := range slices.Sorted(maps.Keys(t.sessions)) {
			t.sessions[uid].markAll()
		}
	}
	for _, c := range changes {
		t.route(c)
	}
	t.loops.replicas.wake()
	t.loops.crons.wake()
}

// route marks the sessions that a change concerns.
func (t *term) route(c state.Change) {
	switch c.Kind {
	case state.KindReplica:
		before, _ := c.Old.(*v1.Replica)
		after, _ := c.New.(*v1.Replica)
		uid, nodes := assignment.Concerned(before, after)
		for _, node := range nodes {
			if s := t.sessions[node]; s != nil {
				s.mark(uid)
			}
		}
	case state.KindNode:
		t.loops.nodes.wake()
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		if after != nil {
			t.server.watch.enter(t.w, after)
		}
		s := t.sessions[before.GetMetadata().GetUid()]
		switch {
		case s == nil:
		case after == nil: // it was removed, and is cut off at once
			s.closeAtServer("the node was removed")
		case before.GetStatus().GetState() != "offline" && after.GetStatus().GetState() == "offline":
			// Before it counts again, it has to report the outcome of its replicas.
			s.closeAtServer("nothing was heard of it for too long")
		case !proto.Equal(before.GetSpec(), after.GetSpec()):
			s.markAll()
		}
	case state.KindCluster:
		t.w.troubled() // waiting times start over
		t.loops.nodes.wake()
		for _, uid := range slices.Sorted(maps.Keys(t.sessions)) {
			t.sessions[uid].pace()
		}
	}
}

// submit accepts a node's reports about its replicas.
func (t *term) submit(node string, statuses []*v1.ReplicaReport) {
	for _, one := range statuses {
		t.reports[reported{node, one.GetUid()}] = one.GetStatus()
	}
	t.write()
}

// maxReports and maxAttempts are those of the server.
const (
	maxReports  = 256
	maxAttempts = 16
)

// write brings reports into the state: while one batch is being committed, the next one
// fills.
func (t *term) write() {
	if t.writing || len(t.reports) == 0 {
		return
	}
	t.writing = true
	t.w.after(time.Millisecond, func() {
		taken := t.reports
		t.reports = map[reported]*v1.ReplicaStatus{}
		t.writeBatch(taken, maxAttempts)
	})
}

func (t *term) writeBatch(taken map[reported]*v1.ReplicaStatus, attempts int) {
	if t.over {
		return
	}
	order := slices.SortedFunc(maps.Keys(taken), func(a, b reported) int {
		if a.replica != b.replica {
			return compare(a.replica, b.replica)
		}
		return compare(a.node, b.node)
	})
	if len(order) > maxReports {
		t.w.fail("simulation", "%d reports at once", len(order))
	}
	snap := t.server.store.Snapshot()
	b := &state.Batch{}
	for _, what := range order {
		old := snap.Replica(what.replica)
		if r := assignment.Reported(old, what.node, taken[what], t.w.wall(t.server)); r != nil {
			b.Update(r, old.GetMetadata().GetVersion())
			t.w.note("report: %s is %s, was %s", r.GetMetadata().GetName(), r.GetStatus().GetPhase(), old.GetStatus().GetPhase())
		}
	}
	done := func(err error) {
		switch {
		case t.over:
		case state.MovedOn(err) && attempts > 1:
			t.writeBatch(taken, attempts-1)
			return
		case err != nil: // agents report everything again when they reconnect
			for _, uid := range slices.Sorted(maps.Keys(t.sessions)) {
				t.sessions[uid].closeAtServer(fmt.Sprintf("reports could not be written: %v", err))
			}
		}
		t.writing = false
		t.write()
	}
	if b.Len() == 0 {
		done(nil)
		return
	}
	t.propose("reports", b, snap, done)
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
