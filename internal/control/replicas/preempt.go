package replicas

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Preemption takes time, because victims end by their signal and grace period. Its progress
// is in the state, so that every tick resumes from there, even under the next leader:
//
// - Victims are marked to stop, with the reason. Their workloads create replacements at
// once, which go elsewhere or wait.
// - The preemptor stays pending, with the node on which room is being made. The room counts
// as reserved: no replica of the same or a lower priority takes it, and no further victims
// are chosen.
// - When there is room, on that node or any other, the preemptor is placed. If the node no
// longer suits, or a replica of a higher priority takes the room, it is planned again from
// scratch.

// reserve reserves the room for a preemptor and stops the victims.
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

// leaving counts the stopping replicas on a node, by workload name.
func (t *tick) leaving(node string) map[string]int {
	counts := map[string]int{}
	for r := range t.snap.ReplicasOn(node) {
		if spec.Live(r.GetStatus().GetPhase()) && (t.stopped[r.GetMetadata().GetUid()] || t.cluster.Standing(t.snap, r) == scheduler.Leaving) {
			counts[r.GetSpec().GetWorkload()]++
		}
	}
	return counts
}

// push preempts a replica. Its workload becomes due, to create a replacement.
func (t *tick) push(old *v1.Replica, v scheduler.Preemption, by *v1.Replica) {
	if t.stopped[old.GetMetadata().GetUid()] && !t.cancelStop(old) {
		return // it has to leave anyway
	}
	t.stopped[old.GetMetadata().GetUid()] = true
	t.left.Workloads[old.GetSpec().GetWorkloadUid()] = true
	t.stopFor(old, "Preempted", fmt.Sprintf("makes room on node %s for %s of priority %d; its own is %d",
		v.NodeName, by.GetMetadata().GetName(), placement.PriorityOf(t.snap, by), v.Priority), "", by.GetMetadata().GetUid())
	t.createSuccessorOf(old)
}

// cancelStop cancels the stop of a replica for its successor, because another replica gets
// the room.
func (t *tick) cancelStop(old *v1.Replica) bool {
	before := len(t.stops)
	t.stops = slices.DeleteFunc(t.stops, func(r *v1.Replica) bool { return r.GetMetadata().GetUid() == old.GetMetadata().GetUid() })
	return len(t.stops) < before || old.GetSpec().GetDesired() == spec.DesiredStopped
}

// stopFor stops a replica for a reason outside its workload, with another grace period if one
// is given. The caller has taken room for it.
func (t *tick) stopFor(old *v1.Replica, event, why, grace, by string) {
	r := proto.CloneOf(old)
	r.Spec.Desired, r.Spec.StopReason, r.Spec.StopGrace, r.Spec.PreemptedFor = spec.DesiredStopped, why, grace, by
	r.Status.Reason = why
	t.batch.Update(r, old.GetMetadata().GetVersion())
	severity := state.SeverityWarning
	if event == eventMoved {
		severity = state.SeverityInfo
	}
	t.event(r, event, why, severity)
}

// cancelReservations cancels the reservations that a move displaces, except those of moved replicas.
func (t *tick) cancelReservations(m move, moved map[string]bool) {
	for _, v := range m.victims {
		r := t.snap.Replica(v.Replica)
		if r.GetSpec().GetNodeUid() != "" || moved[v.Replica] || t.unplaced[v.Replica] != nil || t.stopped[v.Replica] {
			continue // not a reservation, or already decided
		}
		moved[v.Replica] = true
		t.left.Workloads[r.GetSpec().GetWorkloadUid()] = true
		t.keepPending([]*v1.Replica{r}, fmt.Sprintf("the room that it had on node %s is for %s, which has a higher priority",
			v.NodeName, m.replica.GetMetadata().GetName()))
	}
}

// requeueUnheld puts replicas that have lost their reservation at the head of those that
// wait. It does not touch those that the plan keeps.
func (t *tick) requeueUnheld(plan scheduler.Plan, all []*asked) {
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
