package replicas

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// asked holds the replicas of one ask of a plan: those without a place, and those for which
// room is being made. They have the same revision, and so the same needs.
type asked struct {
	revision *scheduler.Revision
	// surging is whether they start beside outdated ones, see surge. They push out no others.
	surging bool
	waiting []*v1.Replica
	held    []*v1.Replica
}

// place asks the scheduler for places for all waiting replicas, in one plan.
func (t *tick) place() {
	asks := map[string]*asked{}
	for _, uid := range slices.Sorted(maps.Keys(t.unplaced)) { // oldest first
		r := t.unplaced[uid]
		key := r.GetSpec().GetWorkloadUid() + " " + r.GetSpec().GetRevisionUid()
		if t.surging[uid] {
			key += " surging"
		}
		a := asks[key]
		if a == nil {
			a = &asked{surging: t.surging[uid]}
			asks[key] = a
		}
		if placement.Promised(t.snap, r) != "" {
			a.held = append(a.held, r)
		} else {
			a.waiting = append(a.waiting, r)
		}
	}
	var request scheduler.Request
	var all []*asked // by ask
	for _, key := range slices.Sorted(maps.Keys(asks)) {
		a := asks[key]
		if why := t.awaitsSecret(t.revisionOf(a)); why != "" {
			t.keepPending(append(a.held, a.waiting...), why)
			continue
		}
		var err error
		if a.revision, err = t.cluster.Revision(t.snap, t.revisionOf(a)); err != nil {
			t.keepPending(append(a.held, a.waiting...), err.Error())
			continue
		}
		ask := placement.AskFor(a.revision, a.waiting, a.held)
		ask.Modest = a.surging
		request.Asks = append(request.Asks, ask)
		all = append(all, a)
	}
	if len(request.Asks) > 0 {
		t.carryOut(t.plan(request), all)
	}
}

// awaitsSecret says which secret keeps new replicas of a revision from starting. A change of the secret makes their
// workload due, see [Engine.Follow].
func (t *tick) awaitsSecret(revisionUID string) string {
	return placement.AwaitsSecret(t.snap, t.snap.Revision(revisionUID), t.now)
}

func (t *tick) revisionOf(a *asked) string {
	for _, r := range append(a.held, a.waiting...) {
		return r.GetSpec().GetRevisionUid()
	}
	return ""
}

// plan plans as if the replicas that this tick stops were leaving, and those that it loses
// were gone. Afterwards the view matches the snapshot again.
func (t *tick) plan(request scheduler.Request) scheduler.Plan {
	for _, lost := range t.losses {
		request.Without = append(request.Without, lost.GetMetadata().GetUid())
	}
	for uid := range t.stopped {
		switch r := t.snap.Replica(uid); {
		case r == nil:
		case !t.makesWay(r):
			t.cluster.View.Leave(uid)
		case r.GetSpec().GetNodeUid() != "":
			t.cluster.View.GiveWay(uid) // it no longer serves, so its workload has one fewer toward minAvailable
		}
	}
	plan := t.cluster.View.Plan(request)
	for uid := range t.stopped {
		if r := t.snap.Replica(uid); r != nil {
			t.cluster.Put(t.snap, r)
		}
	}
	return plan
}

// carryOut gives each waiting replica the node that the plan has for it. Replicas without
// one stay pending with the reason.
func (t *tick) carryOut(plan scheduler.Plan, all []*asked) {
	t.requeueUnheld(plan, all)
	victims := map[int][]scheduler.Preemption{} // by placement
	for _, p := range plan.Preemptions {
		victims[p.Placement] = append(victims[p.Placement], p)
	}
	var moves []move
	for i, p := range plan.Placements {
		a := all[p.Ask]
		m := move{of: a.revision, to: p, victims: victims[i]}
		if p.Held != "" {
			m.replica = t.unplaced[p.Held]
		} else {
			m.replica = takeFor(&a.waiting, p)
		}
		if t.takeAll(m) {
			moves = append(moves, m)
		}
		if p.Preempts {
			t.cluster.View.WaitPatiently(a.revision)
		}
	}
	t.commit(moves)
	for _, h := range plan.Held {
		t.cluster.View.WaitPatiently(all[h.Ask].revision)
	}
	for _, u := range plan.Unplaced {
		a := all[u.Ask]
		if nodes := placement.OnlyNodes(a.waiting); len(nodes) > 0 {
			t.keepPendingEach(a.waiting, u)
			t.cluster.View.WaitOn(a.revision, nodes)
			continue
		}
		t.keepPending(a.waiting, u.Summary())
		t.cluster.View.Wait(a.revision)
	}
}

func (t *tick) assign(old *v1.Replica, p scheduler.Placement) {
	r := old
	if t.stored(old) {
		r = proto.CloneOf(old)
	}
	if r.GetSpec().GetNotBefore() != nil {
		r.Spec.NotBefore = timestamppb.New(t.now)
	}
	r.Spec.NodeUid, r.Spec.Node, r.Spec.ReservedNodeUid, r.Spec.Succeeds = p.Node, p.NodeName, "", ""
	t.cluster.decided = append(t.cluster.decided, placement.Decision{Replica: r.GetMetadata().GetUid(), Node: p.Node, Score: p.Score})
	r.Status.Phase, r.Status.Reason = spec.PhasePlaced, ""
	t.put(old, r)
	t.recordPlaced(r)
}

func (t *tick) keepPending(replicas []*v1.Replica, reason string) {
	for _, old := range replicas {
		if t.dropSurge(old) {
			continue
		}
		if t.covers[old.GetMetadata().GetUid()] != "" {
			t.dropCover(old)
			continue
		}
		t.departUncovered(old.GetSpec().GetWorkloadUid())
		// Users who ask get a fresh explanation. A new event for every change of the free
		// resources would evict all other events.
		announced := old.GetStatus().GetReason() != "" && !(placement.Held(old) && old.GetStatus().GetReason() == placement.HeldReason(old)) && old.GetSpec().GetReservedNodeUid()+old.GetSpec().GetSucceeds() == ""
		if t.stored(old) && (announced || !t.take(old.GetSpec().GetWorkloadUid())) {
			continue
		}
		if old.GetSpec().GetSucceeds() != "" {
			t.left.Workloads[old.GetSpec().GetWorkloadUid()] = true // its update waits for nothing any more
		}
		r := proto.CloneOf(old)
		r.Status.Reason, r.Spec.ReservedNodeUid, r.Spec.Succeeds = reason, "", ""
		t.put(old, r)
		t.event(r, "Unplaced", reason, state.SeverityWarning)
	}
}

// ending counts the replicas on a node that are being waited for: "2 replicas of batch".
func ending(counts map[string]int) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		texts = append(texts, spec.Count(counts[name], "replica")+" of "+name)
	}
	return strings.Join(texts, ", ")
}
