package replicas

import (
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// cluster is the model that the engine decides by, with what it remembers about it.
type cluster struct {
	*placement.Model
	// decided holds the placements of the last tick.
	decided []placement.Decision
	// tallies by workload uid. Workloads that were not examined yet have none.
	tallies map[string]*tally
	// groups are the uids of the deployments of each group.
	groups map[string]map[string]bool
	// foreseeing is whether this is a forecast: its deployments need not wait.
	foreseeing bool
	// pace is how fast lost replicas are replaced.
	pace pace
	// leases are those of singletons; nil if none is valid.
	leases Leases
	// traffic counts the requests of revisions; nil if nobody does.
	traffic Traffic
	// balance is what rebalancing remembers.
	balance balance
}

func newCluster(snap *state.Snapshot) *cluster {
	c := &cluster{Model: placement.NewModel(snap), tallies: map[string]*tally{}, groups: map[string]map[string]bool{}}
	c.pace.cause, c.pace.deferred = placement.CauseLost, map[string]int{}
	c.balance = newBalance(snap)
	for d := range snap.Deployments("", "") {
		c.followGroup(nil, d)
	}
	return c
}

// follow applies the changes that led to a snapshot.
func (c *cluster) follow(snap *state.Snapshot, changes []state.Change) {
	for _, change := range changes {
		switch change.Kind {
		case state.KindNode:
			before, _ := change.Old.(*v1.Node)
			after, _ := change.New.(*v1.Node)
			c.balance.followNode(before, after)
			if before != nil && (after == nil || (before.GetStatus().GetState() == spec.NodeOffline) != (after.GetStatus().GetState() == spec.NodeOffline) || departuresChanged(before, after)) {
				c.recount(snap, before.GetMetadata().GetUid())
			}
		case state.KindWorkload:
			if change.New == nil {
				delete(c.tallies, change.Old.GetMetadata().GetUid())
				delete(c.pace.deferred, change.Old.GetMetadata().GetUid())
			}
		case state.KindDeployment:
			before, _ := change.Old.(*v1.Deployment)
			after, _ := change.New.(*v1.Deployment)
			c.followGroup(before, after)
		case state.KindReplica:
			before, _ := change.Old.(*v1.Replica)
			after, _ := change.New.(*v1.Replica)
			c.pace.follow(before, after)
			c.balance.follow(snap, before, after)
			c.followReplica(snap, before, after)
		}
	}
	c.Model.Follow(snap, changes)
}

// tally counts the replicas of one workload. With it, the change of one replica need not
// examine all: a workload of thousands would be examined thousands of times while its
// replicas start. It is made when all replicas are examined, and follows the changes from
// then on.
type tally struct {
	// revision is the workload's revision at that time.
	revision string
	// standing counts replicas of that revision that have a node and stay there. Of these,
	// serving serve, steady have done so for long enough, and crashed have ended by themselves.
	standing, serving, steady, crashed int
	// others counts all replicas that may need something to be done, now or soon.
	others int
}

// count adds a replica, or removes it if by is -1.
func (t *tally) count(r *v1.Replica, by int) {
	phase, stopped := r.GetStatus().GetPhase(), r.GetSpec().GetDesired() == spec.DesiredStopped
	switch {
	case spec.Ended(phase) && (stopped || phase == spec.PhaseStopped || phase == spec.PhaseLost):
	case spec.Live(phase) && !stopped && phase != spec.PhaseStopping && phase != spec.PhasePending && phase != "" &&
		r.GetSpec().GetNodeUid() != "" && r.GetSpec().GetRevisionUid() == t.revision:
		t.standing += by
		if spec.Serves(r) {
			t.serving += by
		}
		if spec.Steady(r) {
			t.steady += by
		} else if r.GetStatus().GetRestarts() > 0 || phase == spec.PhaseBackoff {
			t.crashed += by
		}
	default:
		t.others += by
	}
}

// lacks returns how many replicas a service is missing, if nothing else may have to be done
// for it. It is not known for other kinds and for workloads without a tally.
func (c *cluster) lacks(w *v1.Workload) (missing int, known bool) {
	switch w.GetSpec().GetKind() {
	case spec.KindJob, spec.KindDaemon, spec.KindCron:
		return 0, false
	}
	t := c.tallies[w.GetMetadata().GetUid()]
	if t == nil || t.others > 0 || t.revision != w.GetStatus().GetRevisionUid() || w.GetMetadata().GetDeleteTime() != nil {
		return 0, false
	}
	missing = int(spec.Replicas(w)) - t.standing
	return missing, missing >= 0
}

// settled reports whether there is nothing to do for a service. An open deployment is looked at
// when it may have succeeded or failed.
func (c *cluster) settled(snap *state.Snapshot, w *v1.Workload) bool {
	missing, known := c.lacks(w)
	if !known || missing != 0 {
		return false
	}
	t := c.tallies[w.GetMetadata().GetUid()]
	proven := t.steady
	if proven > 0 && spec.ProvenByOne(w.GetSpec()) {
		proven = t.serving
	}
	return !rollingOut(snap, w) || proven < t.standing && t.crashed == 0
}

// followReplica updates the tally of a replica's workload.
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
		if !staysOnNode(snap, after) || placement.WasEvicted(after) {
			delete(c.tallies, workload)
		}
	}
}

// staysOnNode reports whether nothing about its node makes a replica leave: the node exists, is
// neither offline nor draining, and has no NoExecute taint.
func staysOnNode(snap *state.Snapshot, r *v1.Replica) bool {
	if r.GetSpec().GetNodeUid() == "" || spec.Ended(r.GetStatus().GetPhase()) {
		return true
	}
	n := snap.Node(r.GetSpec().GetNodeUid())
	return n != nil && n.GetStatus().GetState() != spec.NodeOffline && !spec.Drains(n) && !slices.ContainsFunc(n.GetSpec().GetTaints(), noExecute)
}

// recount drops the tallies of workloads with a replica on a changed node.
func (c *cluster) recount(snap *state.Snapshot, node string) {
	for r := range snap.ReplicasOn(node) {
		delete(c.tallies, r.GetSpec().GetWorkloadUid())
	}
}
