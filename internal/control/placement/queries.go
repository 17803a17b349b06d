package placement

import (
	"maps"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Away reports whether a live replica is on an offline node.
func Away(snap *state.Snapshot, r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && spec.Live(r.GetStatus().GetPhase()) && snap.Node(node).GetStatus().GetState() == spec.NodeOffline
}

// NodeRemoved reports whether a live replica is on a node that no longer exists: it was placed
// there just as the node was removed.
func NodeRemoved(snap *state.Snapshot, r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && spec.Live(r.GetStatus().GetPhase()) && snap.Node(node) == nil
}

// Queries answers questions about placement from a snapshot.
type Queries struct {
	// Decisions are those of this server's loop. It may be nil.
	Decisions *Decisions
}

// Explain says for each node why it cannot take the pending replicas of a workload, or else
// the successor of its oldest outdated one. It is empty if they fit.
func (Queries) Explain(snap *state.Snapshot, workloadUID string) []*v1.NodeReason {
	w := snap.Workload(workloadUID)
	if w.GetSpec().GetKind() == spec.KindDaemon {
		return explainDaemon(snap, w)
	}
	pending, outdated := missing(snap, w)
	held := making(snap, workloadUID) // replicas that wait for reserved room are explained separately
	if pending == 0 && outdated == nil && held == nil {
		return nil
	}
	c := NewModel(snap)
	revision, err := c.Revision(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil
	}
	request := scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Count: pending, Held: held}}, Reasons: true}
	if pending == 0 && outdated != nil {
		request.Asks[0].Count = 1
		request.Without = []string{outdated.GetMetadata().GetUid()}
	}
	plan := c.View.Plan(request)
	var reasons []*v1.NodeReason
	for _, u := range plan.Unplaced {
		for _, n := range u.Nodes {
			if len(n.Refusals) == 0 {
				continue // the quota refuses
			}
			reasons = append(reasons, &v1.NodeReason{Node: n.NodeName, Reason: n.String()})
		}
	}
	return reasons
}

// making lists the uids of a workload's replicas for which room is being made.
func making(snap *state.Snapshot, workloadUID string) (uids []string) {
	for r := range snap.ReplicasOf(workloadUID) {
		if Promised(snap, r) != "" && spec.Live(r.GetStatus().GetPhase()) {
			uids = append(uids, r.GetMetadata().GetUid())
		}
	}
	slices.Sort(uids)
	return uids
}

// missing counts the pending replicas of a workload, without those for which room is being
// made, and finds its oldest outdated one.
func missing(snap *state.Snapshot, w *v1.Workload) (pending int, outdated *v1.Replica) {
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		switch {
		case spec.Ended(r.GetStatus().GetPhase()), awaitsRoom(snap, r):
		case r.GetSpec().GetNodeUid() == "", Away(snap, r):
			pending++
		case r.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() && (outdated == nil || r.GetMetadata().GetUid() < outdated.GetMetadata().GetUid()):
			outdated = r
		}
	}
	return pending, outdated
}

// Requested is the sum of the requests of the replicas on a node.
func (Queries) Requested(snap *state.Snapshot, nodeUID string) *v1.NodeResources {
	n := snap.Node(nodeUID)
	if n == nil {
		return nil
	}
	c := emptyModel(snap)
	c.addNode(snap, n)
	return nodeResources(c.View.Requested(nodeUID))
}

// Allocatable is how much the replicas on a node may request in total. It is empty until
// the node has reported its resources.
func (Queries) Allocatable(snap *state.Snapshot, n *v1.Node) *v1.NodeResources {
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

// Pending counts the replicas without a node by what refuses most nodes: the name of a
// filter, "nodes" if there are none, "placing" if a place will be found at once,
// "preemption" if room is being made, "update" if the predecessor has not ended yet.
func (Queries) Pending(snap *state.Snapshot) map[string]int {
	waiting := map[string][]*v1.Replica{} // by workload
	counts := map[string]int{}
	for r := range snap.ReplicasOn("") {
		uid := r.GetSpec().GetWorkloadUid()
		switch {
		case spec.Ended(r.GetStatus().GetPhase()):
		case r.GetSpec().GetReservedNodeUid() != "":
			counts["preemption"]++
		case Awaits(snap, r):
			counts["update"]++
		default:
			waiting[uid] = append(waiting[uid], r)
		}
	}
	if len(waiting) == 0 {
		return counts
	}
	c := NewModel(snap)
	var request scheduler.Request
	for _, uid := range slices.Sorted(maps.Keys(waiting)) {
		revision, err := c.Revision(snap, snap.Workload(uid).GetStatus().GetRevisionUid())
		if err != nil {
			counts["revision"] += len(waiting[uid])
			continue
		}
		request.Asks = append(request.Asks, AskFor(revision, waiting[uid], nil))
	}
	plan := c.View.Plan(request)
	if found := len(plan.Placements); found > 0 {
		counts["placing"] = found
	}
	for _, u := range plan.Unplaced {
		counts[u.MainReason()] += u.Count
	}
	return counts
}
