package replicas

import (
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// An update must not cost a workload its room. So the successor of an outdated replica is
// created in the transaction that stops the old one:
//
// - Until the old replica has ended, the room is its own, and the successor waits without
// room.
// - The change that ends the old replica gives the room to the successor, so that no other
// waiting replica takes it. The quota is passed on in the same way.
// - The successor is then placed wherever it is best, there or elsewhere.
//
// A replica that may preempt the old one or the successor still gets the room. A successor that the plan leads elsewhere
// gives its room up in the same transaction, even if the commit leaves its own move out because something has changed
// since. In both cases it waits like any other.

// succeed stops an outdated replica and creates its successor.
func (t *tick) succeed(w *v1.Workload, old *v1.Replica) {
	if !t.room.has(2) {
		t.left.Workloads[w.GetMetadata().GetUid()] = true
		return
	}
	t.stop(old)
	t.addSuccessor(w, old)
}

// addSuccessor creates the successor of a stopping replica.
func (t *tick) addSuccessor(w *v1.Workload, old *v1.Replica) {
	if !t.take(w.GetMetadata().GetUid()) {
		return
	}
	r := t.newReplica(w)
	r.Spec.Succeeds = old.GetMetadata().GetUid()
	if w.GetSpec().GetKind() == spec.KindDaemon {
		r.Spec.OnlyNodeUid, r.Spec.OnlyNode = old.GetSpec().GetNodeUid(), old.GetSpec().GetNode()
	}
	r.Status.Reason = fmt.Sprintf("waits for %s to end on node %s", old.GetMetadata().GetName(), old.GetSpec().GetNode())
	t.successors = append(t.successors, r)
}

// makesWay reports whether a replica that this tick stops has a successor.
func (t *tick) makesWay(r *v1.Replica) bool {
	uid := r.GetMetadata().GetUid()
	if slices.ContainsFunc(t.successors, func(successor *v1.Replica) bool { return successor.GetSpec().GetSucceeds() == uid }) {
		return true
	}
	return t.cluster.Replaced(t.snap, r) && !t.stopped[t.cluster.Successors[uid]]
}

// addSuccessors creates successors of stopping replicas.
func (t *tick) addSuccessors(w *v1.Workload, leaving []string) {
	for _, uid := range leaving {
		t.addSuccessor(w, t.snap.Replica(uid))
	}
}

// finishStops writes the replicas that their own workload stops, and their successors.
func (t *tick) finishStops() {
	for _, r := range t.stops {
		t.batch.Update(r, r.GetMetadata().GetVersion())
	}
	for _, r := range t.successors {
		t.batch.Create(r)
	}
}

// createSuccessorOf creates the successor of a replica in the part of the batch that stops the
// replica for another reason. If that part is left out, the replica stays, and a successor
// would be one too many.
func (t *tick) createSuccessorOf(old *v1.Replica) {
	t.successors = slices.DeleteFunc(t.successors, func(r *v1.Replica) bool {
		if r.GetSpec().GetSucceeds() != old.GetMetadata().GetUid() {
			return false
		}
		t.batch.Create(r)
		return true
	})
}
