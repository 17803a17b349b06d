package replicas

import (
	"cmp"
	"errors"
	"maps"
	"runtime"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// cluster is the state as the scheduler sees it. It is read once and then follows
// the changes, each of which costs about a microsecond. After the same changes it
// is the same as one that is read anew.
type cluster struct {
	view *scheduler.View
	// revisions by uid: all replicas of one have the same needs, and reading them
	// is dear. What cannot be read is nil.
	revisions map[string]*scheduler.Revision
	// decided are the placements of the last tick.
	decided []decision
	// offline are the uids of the nodes that nobody hears of.
	offline map[string]bool
	// tallies by the uid of the workload; of those that were not looked at there is none.
	tallies map[string]*tally
	// heirs are the uids of those that wait for the room of another, by the uid of that.
	heirs map[string]string
}

// emptyCluster knows the configuration alone.
func emptyCluster(snap *state.Snapshot) *cluster {
	return &cluster{
		view: scheduler.NewView(options(snap)), revisions: map[string]*scheduler.Revision{}, offline: map[string]bool{}, tallies: map[string]*tally{},
		heirs: map[string]string{},
	}
}

func newCluster(snap *state.Snapshot) *cluster {
	c := emptyCluster(snap)
	c.addQuotas(snap)
	for n := range snap.Nodes("") {
		c.addNode(snap, n)
	}
	for r := range snap.ReplicasOn("") {
		if r.GetSpec().GetReservedNodeUid()+r.GetSpec().GetSucceeds() != "" {
			c.put(snap, r)
			c.putPredecessor(snap, r)
		}
	}
	return c
}

func options(snap *state.Snapshot) scheduler.Options {
	return scheduler.Options{Weights: scheduler.WeightsFromProto(snap.Cluster().GetSpec().GetWeights()), Preempt: true}
}

// followAtOnce is how many changes are followed before others have their turn: some
// hundreds of microseconds. Whoever wants to write has to wait for that only, and not
// for the milliseconds after which the runtime would interrupt.
const followAtOnce = 64

// follow brings the cluster up to date with changes that led to a snapshot.
func (c *cluster) follow(snap *state.Snapshot, changes []state.Change) {
	for i, change := range changes {
		if i%followAtOnce == followAtOnce-1 {
			runtime.Gosched()
		}
		switch change.Kind {
		case state.KindCluster:
			c.configure(snap)
		case state.KindNode:
			c.followNode(snap, change)
		case state.KindNamespace:
			c.followNamespace(snap, change)
		case state.KindWorkload:
			c.followWorkload(snap, change)
		case state.KindRevision:
			if change.New == nil {
				delete(c.revisions, change.Old.GetMetadata().GetUid())
			}
		case state.KindReplica:
			before, _ := change.Old.(*v1.Replica)
			after, _ := change.New.(*v1.Replica)
			c.followReplica(snap, before, after)
			c.putPredecessor(snap, before)
			if c.noteHeir(after); before.GetSpec().GetSucceeds() != after.GetSpec().GetSucceeds() {
				c.putPredecessor(snap, after)
			}
			if after == nil {
				c.view.RemoveReplica(before.GetMetadata().GetUid())
				c.putHeir(snap, before)
			} else {
				c.put(snap, after)
				c.putHeir(snap, after)
			}
		}
	}
}

func (c *cluster) configure(snap *state.Snapshot) {
	c.view.SetOptions(options(snap))
	for n := range snap.Nodes("") {
		c.view.ApplyNode(viewNode(snap, n))
	}
}

func (c *cluster) followNode(snap *state.Snapshot, change state.Change) {
	before, _ := change.Old.(*v1.Node)
	n, _ := change.New.(*v1.Node)
	if before != nil && (n == nil || (before.GetStatus().GetState() == nodeOffline) != (n.GetStatus().GetState() == nodeOffline) || otherTaints(before, n)) {
		c.recount(snap, before.GetMetadata().GetUid())
	}
	switch {
	case n == nil:
		c.view.RemoveNode(before.GetMetadata().GetUid())
		delete(c.offline, before.GetMetadata().GetUid())
	case before == nil:
		c.addNode(snap, n)
	default:
		if c.offline[n.GetMetadata().GetUid()] != (n.GetStatus().GetState() == nodeOffline) {
			c.addNode(snap, n) // its replicas stand otherwise now
			return
		}
		c.view.ApplyNode(viewNode(snap, n))
	}
}

// followWorkload reads the revisions of a workload again whose labels have
// changed, because rules of others may be about them, or how important it is, or how many are to stay. Where it has
// another revision or is deleted, the room of those that leave it is for others than before.
func (c *cluster) followWorkload(snap *state.Snapshot, change state.Change) {
	before, _ := change.Old.(*v1.Workload)
	after, _ := change.New.(*v1.Workload)
	if after == nil {
		delete(c.tallies, before.GetMetadata().GetUid())
	}
	if before != nil && (before.GetStatus().GetRevisionUid() != after.GetStatus().GetRevisionUid() || after.GetMetadata().GetDeleteTime() != nil) {
		for r := range snap.ReplicasOf(before.GetMetadata().GetUid()) {
			if r.GetSpec().GetDesired() == rollout.DesiredStopped {
				c.put(snap, r)
			}
		}
	}
	if before == nil || after == nil || sameToOthers(before, after) {
		return
	}
	uid := change.New.GetMetadata().GetUid()
	for revision := range snap.RevisionsOf(uid) {
		delete(c.revisions, revision.GetMetadata().GetUid())
	}
	for r := range snap.ReplicasOf(uid) {
		c.view.RemoveReplica(r.GetMetadata().GetUid())
	}
	for r := range snap.ReplicasOf(uid) {
		c.put(snap, r)
	}
}

// sameToOthers reports whether a workload has stayed the same to the rules of others, and
// to those who need its room.
func sameToOthers(before, after *v1.Workload) bool {
	was, is := before.GetSpec(), after.GetSpec()
	return was.GetMinAvailable() == is.GetMinAvailable() && spec.PriorityOf(was) == spec.PriorityOf(is) &&
		maps.Equal(before.GetMetadata().GetLabels(), after.GetMetadata().GetLabels())
}

// addNode puts a node into the view with the replicas that it has.
func (c *cluster) addNode(snap *state.Snapshot, n *v1.Node) {
	if n.GetStatus().GetState() == nodeOffline {
		c.offline[n.GetMetadata().GetUid()] = true
	} else {
		delete(c.offline, n.GetMetadata().GetUid())
	}
	c.view.ApplyNode(viewNode(snap, n))
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		c.put(snap, r)
	}
}

func viewNode(snap *state.Snapshot, n *v1.Node) scheduler.Node {
	return scheduler.NodeFromProto(n, spec.NodePolicyOf(snap.Cluster().GetSpec(), n))
}

// put accounts for a replica as it is now.
func (c *cluster) put(snap *state.Snapshot, r *v1.Replica) {
	c.noteHeir(r)
	uid, node := r.GetMetadata().GetUid(), cmp.Or(r.GetSpec().GetNodeUid(), promised(snap, r))
	revision, err := c.revision(snap, r.GetSpec().GetRevisionUid())
	if err != nil || node == "" || rollout.Ended(r.GetStatus().GetPhase()) {
		c.view.RemoveReplica(uid)
		return
	}
	c.view.ApplyReplicaAs(uid, revision, node, c.standing(snap, r))
}

// standing is what a replica means to those who need its room.
func (c *cluster) standing(snap *state.Snapshot, r *v1.Replica) scheduler.Standing {
	phase := r.GetStatus().GetPhase()
	switch {
	case r.GetSpec().GetNodeUid() == "":
		return standingOfPromised(r)
	case r.GetSpec().GetDesired() == rollout.DesiredStopped && c.replaced(snap, r):
		return scheduler.Replaced
	case r.GetSpec().GetDesired() == rollout.DesiredStopped, phase == rollout.PhaseStopping, c.offline[r.GetSpec().GetNodeUid()]:
		return scheduler.Leaving
	case phase == rollout.PhaseRunning:
		return scheduler.Serving
	}
	return scheduler.Starting
}

// replaced reports whether a replica that is to stop makes room for its own
// successor.
func (c *cluster) replaced(snap *state.Snapshot, r *v1.Replica) bool {
	uid := r.GetMetadata().GetUid()
	heir := snap.Replica(c.heirs[uid])
	return heir.GetSpec().GetSucceeds() == uid && wanted(heir) && r.GetSpec().GetStopReason() == ""
}

// priorityOf is how important a replica is: as its workload is now.
func priorityOf(snap *state.Snapshot, r *v1.Replica) int32 {
	return spec.PriorityOf(snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec())
}

// revision reads what the replicas of a revision need.
func (c *cluster) revision(snap *state.Snapshot, uid string) (*scheduler.Revision, error) {
	if known := c.revisions[uid]; known != nil {
		return known, nil
	}
	stored := snap.Revision(uid)
	if stored == nil {
		return nil, errors.New("its revision does not exist any more")
	}
	w := snap.Workload(stored.GetSpec().GetWorkloadUid())
	revision, err := scheduler.RevisionFromProto(w, stored)
	if err != nil {
		return nil, err
	}
	c.revisions[uid] = revision
	return revision, nil
}
