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

// Away reports whether a replica lives on a node that is offline.
func (Placement) Away(snap *state.Snapshot, r *v1.Replica) bool { return Away(snap, r) }

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
	pending := 0
	var outdated *v1.Replica
	for r := range snap.ReplicasOf(workloadUID) {
		switch {
		case rollout.Ended(r.GetStatus().GetPhase()):
		case r.GetSpec().GetNodeUid() == "", Away(snap, r):
			pending++
		case r.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() && (outdated == nil || r.GetMetadata().GetUid() < outdated.GetMetadata().GetUid()):
			outdated = r
		}
	}
	if pending == 0 && outdated == nil {
		return nil
	}
	c := newCluster(snap)
	revision, err := c.revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil
	}
	request := scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Count: max(1, pending)}}, Reasons: true}
	if pending == 0 {
		request.Without = []string{outdated.GetMetadata().GetUid()}
	}
	plan := c.view.Plan(request)
	var reasons []*v1.NodeReason
	for _, u := range plan.Unplaced {
		for _, n := range u.Nodes {
			reasons = append(reasons, &v1.NodeReason{Node: n.NodeName, Reason: n.String()})
		}
	}
	return reasons
}

// Requested is the sum of what is promised to the replicas on a node.
func (Placement) Requested(snap *state.Snapshot, nodeUID string) *v1.NodeResources {
	n := snap.Node(nodeUID)
	if n == nil {
		return nil
	}
	c := emptyCluster(snap)
	c.addNode(snap, n)
	requested := c.view.Requested(nodeUID)
	sum := &v1.NodeResources{Cpu: spec.FormatCPU(requested[scheduler.CPU]), Memory: spec.FormatBytes(requested[scheduler.Memory]), Gpu: requested[scheduler.GPU]}
	if disk := requested[scheduler.Disk]; disk > 0 {
		sum.Disk = spec.FormatBytes(disk)
	}
	if bandwidth := requested[scheduler.Bandwidth]; bandwidth > 0 {
		sum.Bandwidth = spec.FormatBandwidth(bandwidth)
	}
	return sum
}

// Pending counts the replicas that have no node by what speaks against most of
// the nodes: the name of a filter, "nodes" where there are none, "placing" where
// a place will be found at once.
func (Placement) Pending(snap *state.Snapshot) map[string]int {
	waiting := map[string]int{} // by workload
	for r := range snap.ReplicasOn("") {
		if !rollout.Ended(r.GetStatus().GetPhase()) {
			waiting[r.GetSpec().GetWorkloadUid()]++
		}
	}
	counts := map[string]int{}
	if len(waiting) == 0 {
		return counts
	}
	c := newCluster(snap)
	var request scheduler.Request
	for _, uid := range slices.Sorted(maps.Keys(waiting)) {
		revision, err := c.revision(snap, snap.Workload(uid).GetStatus().GetRevisionUid())
		if err != nil {
			counts["revision"] += waiting[uid]
			continue
		}
		request.Asks = append(request.Asks, scheduler.Ask{Revision: revision, Count: waiting[uid]})
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
