package replicas

import (
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// tally counts the replicas of one workload, so that a change of one of many
// replicas need not have all of them looked at: a workload of thousands would be
// looked at thousands of times while they are made and start. It is made when all of them are
// looked at, and follows the changes from then on.
type tally struct {
	// revision is the one that the workload had then.
	revision string
	// standing are of that revision, on a node, and to go on there.
	standing int
	// others are all that may need something to be done, now or soon.
	others int
}

// count adds a replica, or takes it away.
func (t *tally) count(r *v1.Replica, by int) {
	phase, stopped := r.GetStatus().GetPhase(), r.GetSpec().GetDesired() == rollout.DesiredStopped
	switch {
	case rollout.Ended(phase) && (stopped || phase == rollout.PhaseStopped || phase == rollout.PhaseLost):
	case rollout.Live(phase) && !stopped && phase != rollout.PhaseStopping && phase != rollout.PhasePending && phase != "" &&
		r.GetSpec().GetNodeUid() != "" && r.GetSpec().GetRevisionUid() == t.revision:
		t.standing += by
	default:
		t.others += by
	}
}

// lacks says how many replicas are missing of a service, if that is all that may be
// to be done for it, however those that it has come up. What is not counted is not
// known, nor is any other kind.
func (c *cluster) lacks(w *v1.Workload) (missing int, known bool) {
	switch w.GetSpec().GetKind() {
	case spec.KindJob, spec.KindDaemon, spec.KindCron:
		return 0, false
	}
	t := c.tallies[w.GetMetadata().GetUid()]
	if t == nil || t.others > 0 || t.revision != w.GetStatus().GetRevisionUid() || w.GetMetadata().GetDeleteTime() != nil {
		return 0, false
	}
	missing = int(w.GetSpec().GetReplicas()) - t.standing
	return missing, missing >= 0
}

// settled reports whether nothing is to be done for a service.
func (c *cluster) settled(w *v1.Workload) bool {
	missing, known := c.lacks(w)
	return known && missing == 0
}

// followReplica keeps the tally of a replica's workload up to date.
func (c *cluster) followReplica(snap *state.Snapshot, before, after *v1.Replica) {
	workload := after.GetSpec().GetWorkloadUid()
	if after == nil {
		workload = before.GetSpec().GetWorkloadUid()
	}
	t := c.tallies[workload]
	if t == nil {
		return
	}
	if before != nil {
		t.count(before, -1)
	}
	if after != nil {
		t.count(after, 1)
		if !steady(snap, after) {
			delete(c.tallies, workload)
		}
	}
}

// steady reports whether nothing about its node makes a replica go: the node is
// there and not offline, and has no taint that ends what is on it.
func steady(snap *state.Snapshot, r *v1.Replica) bool {
	if r.GetSpec().GetNodeUid() == "" || rollout.Ended(r.GetStatus().GetPhase()) {
		return true
	}
	n := snap.Node(r.GetSpec().GetNodeUid())
	return n != nil && n.GetStatus().GetState() != nodeOffline && !slices.ContainsFunc(n.GetSpec().GetTaints(), noExecute)
}

// recount forgets the tallies of those who have a replica on a node that is not
// what it was.
func (c *cluster) recount(snap *state.Snapshot, node string) {
	for r := range snap.ReplicasOn(node) {
		delete(c.tallies, r.GetSpec().GetWorkloadUid())
	}
}
