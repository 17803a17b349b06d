package replicas

import (
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// nodeOffline is the state of a node that nobody hears of.
const nodeOffline = "offline"

// Away reports whether a replica lives on a node that is offline.
func Away(snap *state.Snapshot, r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && rollout.Live(r.GetStatus().GetPhase()) && snap.Node(node).GetStatus().GetState() == nodeOffline
}

// homeless reports whether a replica lives on a node that does not exist: it was
// placed there in the moment in which the node was removed.
func homeless(snap *state.Snapshot, r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && rollout.Live(r.GetStatus().GetPhase()) && snap.Node(node) == nil
}

// Placement answers questions about placement from a snapshot.
type Placement struct {
	// Decisions are those of the loop of this server; they may be nil.
	Decisions *Decisions
}

// Explain says, for each node, why it cannot take the pending replicas of a
// workload, or else the successor of its oldest outdated one. It is empty when
// they fit.
func (Placement) Explain(snap *state.Snapshot, workloadUID string) []*v1.NodeReason {
	w := snap.Workload(workloadUID)
	if w.GetSpec().GetKind() == spec.KindDaemon {
		return explainDaemon(snap, w)
	}
	pending, outdated := missing(snap, w)
	held := making(snap, workloadUID) // what waits for room that is being made is explained by itself
	if pending == 0 && outdated == nil && held == nil {
		return nil
	}
	c := newCluster(snap)
	revision, err := c.revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil
	}
	request := scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Count: pending, Held: held}}, Reasons: true}
	if pending == 0 && outdated != nil {
		request.Asks[0].Count = 1
		request.Without = []string{outdated.GetMetadata().GetUid()}
	}
	plan := c.view.Plan(request)
	var reasons []*v1.NodeReason
	for _, u := range plan.Unplaced {
		for _, n := range u.Nodes {
			if len(n.Refusals) == 0 {
				continue // it is the quota that refuses
			}
			reasons = append(reasons, &v1.NodeReason{Node: n.NodeName, Reason: n.String()})
		}
	}
	return reasons
}

// making are the uids of the replicas of a workload for which room is being made.
func making(snap *state.Snapshot, workloadUID string) (uids []string) {
	for r := range snap.ReplicasOf(workloadUID) {
		if promised(snap, r) != "" && rollout.Live(r.GetStatus().GetPhase()) {
			uids = append(uids, r.GetMetadata().GetUid())
		}
	}
	slices.Sort(uids)
	return uids
}

// missing counts the replicas of a workload that wait for a node, but not those for
// which room is being made, and finds the oldest outdated one.
func missing(snap *state.Snapshot, w *v1.Workload) (pending int, outdated *v1.Replica) {
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		switch {
		case rollout.Ended(r.GetStatus().GetPhase()), expectant(snap, r):
		case r.GetSpec().GetNodeUid() == "", Away(snap, r):
			pending++
		case r.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() && (outdated == nil || r.GetMetadata().GetUid() < outdated.GetMetadata().GetUid()):
			outdated = r
		}
	}
	return pending, outdated
}

// Requested is the sum of what is promised to the replicas on a node.
func (Placement) Requested(snap *state.Snapshot, nodeUID string) *v1.NodeResources {
	n := snap.Node(nodeUID)
	if n == nil {
		return nil
	}
	c := emptyCluster(snap)
	c.addNode(snap, n)
	return nodeResources(c.view.Requested(nodeUID))
}

// Allocatable is what may be promised to the replicas on a node in all, empty
// while it has not said what it has.
func (Placement) Allocatable(snap *state.Snapshot, n *v1.Node) *v1.NodeResources {
	if n.GetStatus().GetCapacity() == nil {
		return nil
	}
	node := viewNode(snap, n)
	return nodeResources(node.Allocatable())
}

func nodeResources(r scheduler.Resources) *v1.NodeResources {
	all := &v1.NodeResources{
		Cpu: spec.FormatCPU(r[scheduler.CPU]), Memory: spec.FormatBytes(r[scheduler.Memory]), Gpu: r[scheduler.GPU],
	}
	if r[scheduler.Disk] != 0 {
		all.Disk = spec.FormatBytes(r[scheduler.Disk])
	}
	if r[scheduler.Bandwidth] != 0 {
		all.Bandwidth = spec.FormatBandwidth(r[scheduler.Bandwidth])
	}
	return all
}

// Pending counts the replicas that have no node by what speaks against most of
// the nodes: the name of a filter, "nodes" where there are none, "placing" where
// a place will be found at once, "preemption" where room is being made, "update" where
// the one that is replaced has not ended yet.
func (Placement) Pending(snap *state.Snapshot) map[string]int {
	waiting := map[string][]*v1.Replica{} // by workload
	counts := map[string]int{}
	for r := range snap.ReplicasOn("") {
		uid := r.GetSpec().GetWorkloadUid()
		switch {
		case rollout.Ended(r.GetStatus().GetPhase()):
		case r.GetSpec().GetReservedNodeUid() != "":
			counts["preemption"]++
		case awaits(snap, r):
			counts["update"]++
		default:
			waiting[uid] = append(waiting[uid], r)
		}
	}
	if len(waiting) == 0 {
		return counts
	}
	c := newCluster(snap)
	var request scheduler.Request
	for _, uid := range slices.Sorted(maps.Keys(waiting)) {
		revision, err := c.revision(snap, snap.Workload(uid).GetStatus().GetRevisionUid())
		if err != nil {
			counts["revision"] += len(waiting[uid])
			continue
		}
		request.Asks = append(request.Asks, askFor(revision, waiting[uid], nil))
	}
	plan := c.view.Plan(request)
	if found := len(plan.Placements); found > 0 {
		counts["placing"] = found
	}
	for _, u := range plan.Unplaced {
		counts[u.MainReason()] += u.Count
	}
	return counts
}
