package replicas

import (
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// An update must not cost a workload the room that it has. So the successor of an
// outdated replica is made in the moment in which that is told to stop:
//
//   - Until the old one has ended, its room is its own, and the successor waits
//     without a room.
//   - In the change that ends the old one the room is the successor's: nobody who waited
//     longer comes between. The quota goes on to it in the same way.
//   - The successor is placed then wherever it is best, there or elsewhere.
//
// Who may push the old one out, or the successor, gets the room all the same; then the
// successor waits like any other.

// predecessor is the replica that makes way for one that has no node yet, nil if
// there is none or nobody remembers it.
func predecessor(snap *state.Snapshot, r *v1.Replica) *v1.Replica {
	if r.GetSpec().GetSucceeds() == "" || r.GetSpec().GetNodeUid() != "" {
		return nil
	}
	return snap.Replica(r.GetSpec().GetSucceeds())
}

// awaits reports whether a replica waits for another one of its workload to end.
func awaits(snap *state.Snapshot, r *v1.Replica) bool {
	old := predecessor(snap, r)
	return old != nil && !rollout.Ended(old.GetStatus().GetPhase())
}

// promised is the node with room for a replica that is on none: where room is made
// for it, or where its predecessor has been, unless that was pushed out or had to leave
// itself. It is empty if there is no such.
func promised(snap *state.Snapshot, r *v1.Replica) string {
	if r.GetSpec().GetReservedNodeUid() != "" {
		return r.GetSpec().GetReservedNodeUid()
	}
	if old := predecessor(snap, r); rollout.Ended(old.GetStatus().GetPhase()) && old.GetSpec().GetStopReason() == "" {
		return old.GetSpec().GetNodeUid()
	}
	return ""
}

// succeed stops an outdated replica and makes its successor.
func (t *tick) succeed(w *v1.Workload, old *v1.Replica) {
	if !t.room.has(2) {
		t.left.Workloads[w.GetMetadata().GetUid()] = true
		return
	}
	t.stop(old)
	t.addHeir(w, old)
}

// addHeir makes a replica that gets the room of one which is on its way out.
func (t *tick) addHeir(w *v1.Workload, old *v1.Replica) {
	if !t.take(w.GetMetadata().GetUid()) {
		return
	}
	r := t.newReplica(w)
	r.Spec.Succeeds = old.GetMetadata().GetUid()
	if w.GetSpec().GetKind() == spec.KindDaemon {
		r.Spec.OnlyNodeUid, r.Spec.OnlyNode = old.GetSpec().GetNodeUid(), old.GetSpec().GetNode()
	}
	r.Status.Reason = fmt.Sprintf("waits for %s to end on node %s", old.GetMetadata().GetName(), old.GetSpec().GetNode())
	t.heirs = append(t.heirs, r)
}

// makesWay reports whether a replica that this tick stops has a successor.
func (t *tick) makesWay(r *v1.Replica) bool {
	uid := r.GetMetadata().GetUid()
	if slices.ContainsFunc(t.heirs, func(heir *v1.Replica) bool { return heir.GetSpec().GetSucceeds() == uid }) {
		return true
	}
	return t.cluster.replaced(t.snap, r) && !t.stopped[t.cluster.heirs[uid]]
}

// passOn makes successors of some that are on their way out.
func (t *tick) passOn(w *v1.Workload, leaving []string) {
	for _, uid := range leaving {
		t.addHeir(w, t.snap.Replica(uid))
	}
}

// finishStops writes down who is to stop for their own workload, and who comes after them.
func (t *tick) finishStops() {
	for _, r := range t.stops {
		t.batch.Update(r, r.GetMetadata().GetVersion())
	}
	for _, r := range t.heirs {
		if !t.createdHeirs[r.GetMetadata().GetUid()] {
			t.batch.Create(r)
		}
	}
}

// createHeirOf creates the successor that this tick has made for a replica, in the part of the batch that stops the
// replica for another reason. If the part is left out, the replica goes on, and a successor would be one too many.
func (t *tick) createHeirOf(old *v1.Replica) {
	for _, r := range t.heirs {
		if uid := r.GetMetadata().GetUid(); r.GetSpec().GetSucceeds() == old.GetMetadata().GetUid() && !t.createdHeirs[uid] {
			t.batch.Create(r)
			t.createdHeirs[uid] = true
		}
	}
}

// putHeir accounts for the successor of a replica that has changed, and forgets one
// that does not wait for it any more.
func (c *cluster) putHeir(snap *state.Snapshot, old *v1.Replica) {
	uid := old.GetMetadata().GetUid()
	heir, known := c.heirs[uid]
	if !known {
		return
	}
	if r := snap.Replica(heir); r.GetSpec().GetSucceeds() == uid && !rollout.Ended(r.GetStatus().GetPhase()) {
		c.put(snap, r)
	} else {
		delete(c.heirs, uid)
	}
}

// putPredecessor accounts for the one whose successor a replica is, was or has become.
func (c *cluster) putPredecessor(snap *state.Snapshot, r *v1.Replica) {
	if r.GetSpec().GetSucceeds() == "" {
		return // as nearly always
	}
	if old := snap.Replica(r.GetSpec().GetSucceeds()); old != nil && old.GetSpec().GetNodeUid() != "" {
		c.put(snap, old)
	}
}

// noteHeir remembers who waits for whose room.
func (c *cluster) noteHeir(r *v1.Replica) {
	if old := r.GetSpec().GetSucceeds(); old != "" && !rollout.Ended(r.GetStatus().GetPhase()) {
		c.heirs[old] = r.GetMetadata().GetUid()
	}
}

// explainHeirs says of those that wait for their predecessors that they do.
func (x *inquiry) explainHeirs(answer *v1.Explanation) {
	for _, r := range x.heirs {
		if x.only != "" && predecessor(x.snap, r).GetSpec().GetNodeUid() != x.only {
			continue
		}
		told := groupOf([]*v1.Replica{r})
		told.Count, told.Revision, told.Reason = 1, r.GetSpec().GetRevision(), r.GetStatus().GetReason()
		answer.Replicas = append(answer.Replicas, told)
	}
}

// standingOfPromised is the standing of one that is on no node.
func standingOfPromised(r *v1.Replica) scheduler.Standing {
	if r.GetSpec().GetReservedNodeUid() != "" {
		return scheduler.Reserved
	}
	return scheduler.Inherited
}
