package replicas

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/state"
)

// Pushing others out takes time, because they end by their signal and grace
// period. It is written down as it goes on, so that every tick, also that of the
// next leader, goes on from there:
//
//   - Victims are told to stop, and for whom. Their workloads make others in their
//     place at once, which go elsewhere or wait.
//   - The one that needs the room stays pending with the node on which it is made.
//     The room counts as promised to it, so that nobody of the same or a lower
//     priority takes it, and so that no further victims are chosen for it.
//   - When there is room, there or on any other node, it is placed. If its node
//     will not do any more, or one of a higher priority takes the room, it is
//     planned again as if it had none.

// reserve keeps the room for a replica that is being made, and tells those to stop
// who have it.
func (t *tick) reserve(m move) {
	r := proto.CloneOf(m.replica)
	r.Spec.ReservedNodeUid, r.Spec.Succeeds = m.to.Node, ""
	counts := t.leaving(m.to.Node)
	for _, v := range m.victims {
		if victim := t.snap.Replica(v.Replica); victim.GetSpec().GetNodeUid() != "" {
			counts[v.Name]++
			t.push(victim, v, r)
		}
	}
	if r.Status.Reason = fmt.Sprintf("waits for %s to end on node %s", ending(counts), m.to.NodeName); len(counts) == 0 {
		r.Status.Reason = "has room on node " + m.to.NodeName + " that another one was to have"
	}
	t.put(m.replica, r)
	t.event(r, "Waiting", r.GetStatus().GetReason(), state.SeverityInfo)
}

// leaving counts the replicas on a node that were told to end, by the name of
// their workload.
func (t *tick) leaving(node string) map[string]int {
	counts := map[string]int{}
	for r := range t.snap.ReplicasOn(node) {
		if rollout.Live(r.GetStatus().GetPhase()) && (t.stopped[r.GetMetadata().GetUid()] || t.cluster.standing(t.snap, r) == scheduler.Leaving) {
			counts[r.GetSpec().GetWorkload()]++
		}
	}
	return counts
}

// push tells a replica to stop because another needs its room. Its workload is due
// then, to make another one.
func (t *tick) push(old *v1.Replica, v scheduler.Preemption, by *v1.Replica) {
	if t.stopped[old.GetMetadata().GetUid()] && !t.withdraw(old) {
		return // it has to leave anyway
	}
	t.stopped[old.GetMetadata().GetUid()] = true
	t.left.Workloads[old.GetSpec().GetWorkloadUid()] = true
	t.stopBecause(old, "Preempted", fmt.Sprintf("makes room on node %s for %s of priority %d; its own is %d",
		v.NodeName, by.GetMetadata().GetName(), priorityOf(t.snap, by), v.Priority), by.GetMetadata().GetUid())
	t.createHeirOf(old)
}

// withdraw takes back that a replica is to stop for a successor, which has to wait
// now: somebody else is to have its room.
func (t *tick) withdraw(old *v1.Replica) bool {
	before := len(t.stops)
	t.stops = slices.DeleteFunc(t.stops, func(r *v1.Replica) bool { return r.GetMetadata().GetUid() == old.GetMetadata().GetUid() })
	return len(t.stops) < before || old.GetSpec().GetDesired() == rollout.DesiredStopped
}

// stopBecause tells a replica to stop for a reason that is not its workload's. Room
// for it was taken.
func (t *tick) stopBecause(old *v1.Replica, event, why, by string) {
	r := proto.CloneOf(old)
	r.Spec.Desired, r.Spec.StopReason, r.Spec.PreemptedFor = rollout.DesiredStopped, why, by
	r.Status.Reason = why
	t.batch.Update(r, old.GetMetadata().GetVersion())
	t.event(r, event, why, state.SeverityWarning)
}

// unreserve takes the room away that is being made for others than those that
// moved, because a move needs it.
func (t *tick) unreserve(m move, moved map[string]bool) {
	for _, v := range m.victims {
		r := t.snap.Replica(v.Replica)
		if r.GetSpec().GetNodeUid() != "" || moved[v.Replica] || t.unplaced[v.Replica] != nil || t.stopped[v.Replica] {
			continue // it is no reservation, or what becomes of it is decided already
		}
		moved[v.Replica] = true
		t.left.Workloads[r.GetSpec().GetWorkloadUid()] = true
		t.keepPending([]*v1.Replica{r}, fmt.Sprintf("the room that it had on node %s is for %s, which has a higher priority",
			v.NodeName, m.replica.GetMetadata().GetName()))
	}
}

// sortOutHeld puts those for whom room was being made and is not any more among
// the ones that wait, the first of them. Those that the plan keeps are not touched.
func (t *tick) sortOutHeld(plan scheduler.Plan, all []*asked) {
	settled := map[string]bool{}
	for _, h := range plan.Held {
		settled[h.Replica] = true
	}
	for _, p := range plan.Placements {
		settled[p.Held] = true
	}
	for _, a := range all {
		var lost []*v1.Replica
		for _, r := range a.held {
			if !settled[r.GetMetadata().GetUid()] {
				lost = append(lost, r)
			}
		}
		a.waiting = append(lost, a.waiting...)
	}
}
