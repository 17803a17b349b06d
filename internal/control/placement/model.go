package placement

import (
	"cmp"
	"errors"
	"maps"
	"runtime"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Model is the scheduler's view of the state. It is read once and then follows the
// changes, at about a microsecond each. The result equals a view read afresh from the
// newest state.
type Model struct {
	View *scheduler.View
	// revisions by uid. All replicas of a revision have the same needs, and parsing them is
	// expensive. A revision that cannot be parsed is nil.
	revisions map[string]*scheduler.Revision
	// Offline holds the uids of offline nodes.
	Offline map[string]bool
	// Successors maps the uid of a replica to the uid of the successor that waits for its room.
	Successors map[string]string
	// rules are the policies' rules about nodes.
	rules *nodeRules
}

// emptyModel has only the cluster configuration.
func emptyModel(snap *state.Snapshot) *Model {
	return &Model{
		View: scheduler.NewView(options(snap)), revisions: map[string]*scheduler.Revision{}, Offline: map[string]bool{},
		Successors: map[string]string{}, rules: nodeRulesOf(snap),
	}
}

// NewModel reads the model from a snapshot.
func NewModel(snap *state.Snapshot) *Model {
	c := emptyModel(snap)
	c.addQuotas(snap)
	for n := range snap.Nodes("") {
		c.addNode(snap, n)
	}
	for r := range snap.ReplicasOn("") {
		if r.GetSpec().GetReservedNodeUid()+r.GetSpec().GetSucceeds() != "" {
			c.Put(snap, r)
			c.putPredecessor(snap, r)
		}
	}
	return c
}

func options(snap *state.Snapshot) scheduler.Options {
	return scheduler.Options{Weights: scheduler.WeightsFromProto(snap.Cluster().GetSpec().GetWeights()), Preempt: true}
}

// followAtOnce is how many changes are followed before yielding: some hundreds of
// microseconds. Writers wait only that long, and not the milliseconds until the runtime
// preempts the goroutine.
const followAtOnce = 64

// Follow applies the changes that led to a snapshot.
func (c *Model) Follow(snap *state.Snapshot, changes []state.Change) {
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
		case state.KindPolicy:
			c.followPolicy(snap, change)
		case state.KindWorkload:
			c.followWorkload(snap, change)
		case state.KindRevision:
			if change.New == nil {
				delete(c.revisions, change.Old.GetMetadata().GetUid())
			}
		case state.KindReplica:
			before, _ := change.Old.(*v1.Replica)
			after, _ := change.New.(*v1.Replica)
			c.putPredecessor(snap, before)
			if c.noteSuccessor(after); before.GetSpec().GetSucceeds() != after.GetSpec().GetSucceeds() {
				c.putPredecessor(snap, after)
			}
			if after == nil {
				c.View.RemoveReplica(before.GetMetadata().GetUid())
				c.putSuccessor(snap, before)
			} else {
				c.Put(snap, after)
				c.putSuccessor(snap, after)
			}
		}
	}
}

func (c *Model) configure(snap *state.Snapshot) {
	c.View.SetOptions(options(snap))
	for n := range snap.Nodes("") {
		c.View.ApplyNode(viewNode(snap, n))
	}
}

func (c *Model) followNode(snap *state.Snapshot, change state.Change) {
	before, _ := change.Old.(*v1.Node)
	n, _ := change.New.(*v1.Node)
	switch {
	case n == nil:
		c.View.RemoveNode(before.GetMetadata().GetUid())
		delete(c.Offline, before.GetMetadata().GetUid())
	case before == nil:
		c.addNode(snap, n)
	default:
		if c.Offline[n.GetMetadata().GetUid()] != (n.GetStatus().GetState() == spec.NodeOffline) {
			c.addNode(snap, n) // the standing of its replicas has changed
			return
		}
		c.View.ApplyNode(viewNode(snap, n))
	}
}

// followWorkload reads the revisions of a workload again when its labels, priority or
// minAvailable changed, because rules of other workloads and preemption depend on them.
// After a new revision or a deletion, the replicas that leave free their room for other
// workloads.
func (c *Model) followWorkload(snap *state.Snapshot, change state.Change) {
	before, _ := change.Old.(*v1.Workload)
	after, _ := change.New.(*v1.Workload)
	if before != nil && (before.GetStatus().GetRevisionUid() != after.GetStatus().GetRevisionUid() || after.GetMetadata().GetDeleteTime() != nil) {
		for r := range snap.ReplicasOf(before.GetMetadata().GetUid()) {
			if r.GetSpec().GetDesired() == spec.DesiredStopped {
				c.Put(snap, r)
			}
		}
	}
	if before == nil || after == nil || SameForOthers(before, after) {
		return
	}
	uid := change.New.GetMetadata().GetUid()
	for revision := range snap.RevisionsOf(uid) {
		delete(c.revisions, revision.GetMetadata().GetUid())
	}
	for r := range snap.ReplicasOf(uid) {
		c.View.RemoveReplica(r.GetMetadata().GetUid())
	}
	for r := range snap.ReplicasOf(uid) {
		c.Put(snap, r)
	}
}

// SameForOthers reports whether a workload's labels, priority, weights and minAvailable are
// unchanged: other workloads' rules and preemption depend on nothing else, and the model of a
// revision has them from the workload.
func SameForOthers(before, after *v1.Workload) bool {
	was, is := before.GetSpec(), after.GetSpec()
	return was.GetMinAvailable() == is.GetMinAvailable() && spec.PriorityOf(was) == spec.PriorityOf(is) &&
		proto.Equal(was.GetPlacement().GetWeights(), is.GetPlacement().GetWeights()) &&
		maps.Equal(before.GetMetadata().GetLabels(), after.GetMetadata().GetLabels())
}

// addNode adds a node and its replicas to the view.
func (c *Model) addNode(snap *state.Snapshot, n *v1.Node) {
	if n.GetStatus().GetState() == spec.NodeOffline {
		c.Offline[n.GetMetadata().GetUid()] = true
	} else {
		delete(c.Offline, n.GetMetadata().GetUid())
	}
	c.View.ApplyNode(viewNode(snap, n))
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		c.Put(snap, r)
	}
}

func viewNode(snap *state.Snapshot, n *v1.Node) scheduler.Node {
	return scheduler.NodeFromProto(n, spec.NodePolicyOf(snap.Cluster().GetSpec(), n))
}

// Put adds a replica to the view, or updates it.
func (c *Model) Put(snap *state.Snapshot, r *v1.Replica) {
	c.noteSuccessor(r)
	uid, node := r.GetMetadata().GetUid(), cmp.Or(r.GetSpec().GetNodeUid(), Promised(snap, r))
	revision, err := c.Revision(snap, r.GetSpec().GetRevisionUid())
	if err != nil || node == "" || spec.Ended(r.GetStatus().GetPhase()) {
		c.View.RemoveReplica(uid)
		return
	}
	c.View.ApplyReplicaAs(uid, revision, node, c.Standing(snap, r))
}

// Standing says whether others may preempt a replica or wait for its room.
func (c *Model) Standing(snap *state.Snapshot, r *v1.Replica) scheduler.Standing {
	phase := r.GetStatus().GetPhase()
	switch {
	case r.GetSpec().GetNodeUid() == "":
		return standingOfPromised(r)
	case r.GetSpec().GetDesired() == spec.DesiredStopped && c.Replaced(snap, r):
		return scheduler.Replaced
	case r.GetSpec().GetDesired() == spec.DesiredStopped, phase == spec.PhaseStopping, c.Offline[r.GetSpec().GetNodeUid()]:
		return scheduler.Leaving
	case spec.Serves(r):
		return scheduler.Serving
	}
	return scheduler.Starting
}

// Replaced reports whether a stopping replica makes room for its own successor.
func (c *Model) Replaced(snap *state.Snapshot, r *v1.Replica) bool {
	uid := r.GetMetadata().GetUid()
	successor := snap.Replica(c.Successors[uid])
	return successor.GetSpec().GetSucceeds() == uid && Wanted(successor) && r.GetSpec().GetStopReason() == ""
}

// PriorityOf is the current priority of the replica's workload.
func PriorityOf(snap *state.Snapshot, r *v1.Replica) int32 {
	return spec.PriorityOf(snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec())
}

// Revision parses what the replicas of a revision need.
func (c *Model) Revision(snap *state.Snapshot, uid string) (*scheduler.Revision, error) {
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
	c.judge(w, stored, revision)
	addDefaults(snap.NamespaceByName(w.GetMetadata().GetNamespace()), &revision.Needs.Resources)
	c.revisions[uid] = revision
	return revision, nil
}
