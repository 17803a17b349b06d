package placement

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Away reports whether a live replica is on an offline node.
func Away(snap *state.Snapshot, r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && spec.Live(r.GetStatus().GetPhase()) && snap.Node(node).GetStatus().GetState() == spec.NodeOffline
}

// LostAt is when a replica on an offline node counts as lost, so that another one replaces
// it: lostAfter later than the node was last seen. A deployment that replaces replicas does not
// wait for a node that may never come back.
func LostAt(snap *state.Snapshot, w *v1.Workload, r *v1.Replica) time.Time {
	seen := snap.Node(r.GetSpec().GetNodeUid()).GetStatus().GetLastSeen()
	patience := spec.LostAfterOf(w.GetSpec())
	if seen == nil || patience == 0 || moves(snap.Deployment(w.GetStatus().GetDeploymentUid())) {
		return time.Time{}
	}
	return seen.AsTime().Add(patience)
}

// moves reports whether a deployment replaces replicas: it neither waits for something, such as
// an operator who promotes it, nor is it paused.
func moves(d *v1.Deployment) bool {
	return d.GetStatus().GetPhase() == spec.DeploymentRunning && !d.GetStatus().GetWaiting() && d.GetStatus().Progress != nil
}

// NodeRemoved reports whether a live replica is on a node that no longer exists: it was placed
// there just as the node was removed, or it may run there until its lease expires.
func NodeRemoved(snap *state.Snapshot, r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && spec.Live(r.GetStatus().GetPhase()) && snap.Node(node) == nil
}

// Leased reports whether a replica runs only as long as its node has a lease for it.
func Leased(snap *state.Snapshot, r *v1.Replica) bool {
	return snap.Revision(r.GetSpec().GetRevisionUid()).GetSpec().GetWorkload().GetSingleton()
}

// returned is how long after its return a node may need to stop a replica that was lost meanwhile.
const returned = time.Minute

// Lingers reports whether a replica that was lost with its node may still run there: nothing
// stops a replica without a lease while its node is cut off.
func Lingers(snap *state.Snapshot, r *v1.Replica) bool {
	node := snap.Node(r.GetSpec().GetNodeUid())
	return r.GetStatus().GetPhase() == spec.PhaseLost && node.GetStatus().GetState() == spec.NodeOffline && !Leased(snap, r) &&
		!node.GetStatus().GetLastSeen().AsTime().After(r.GetStatus().GetEndTime().AsTime().Add(returned))
}

// Stuck says why a singleton does not start because of a replica on an offline node, with the
// way out. It is empty if it starts sooner or later.
func Stuck(snap *state.Snapshot, w *v1.Workload, r *v1.Replica) string {
	if !w.GetSpec().GetSingleton() || !Lingers(snap, r) && (!Away(snap, r) || Leased(snap, r)) {
		return ""
	}
	node := r.GetSpec().GetNode()
	return fmt.Sprintf("revision %d was not a singleton, so %s may run until node %s is back, and the singleton starts only then; "+
		"if that machine does not run any more, remove it with: cloudless node rm %s --force",
		r.GetSpec().GetRevision(), r.GetMetadata().GetName(), node, node)
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
	if AwaitsSecret(snap, snap.Revision(w.GetStatus().GetRevisionUid()), time.Now()) != "" {
		return nil // the nodes are not the reason
	}
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
		if mayMakeRoom(snap, w) {
			request.Without = []string{outdated.GetMetadata().GetUid()}
		} else {
			request.Asks[0].Modest = true
		}
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

// mayMakeRoom reports whether one replica of a workload may stop before its successor starts:
// minAvailable holds without it.
func mayMakeRoom(snap *state.Snapshot, w *v1.Workload) bool {
	serving := Serving(snap, w)
	return rollout.Spare(serving, serving, int(w.GetSpec().GetMinAvailable())) > 0
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
// "preemption" if room is being made, "update" if the predecessor has not ended yet, "backoff"
// if it waits because earlier replicas took their nodes down or were evicted, "secret" if it waits for a secret.
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
		case HeldBack(time.Now(), r):
			counts["backoff"]++
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
		if AwaitsSecret(snap, snap.Revision(snap.Workload(uid).GetStatus().GetRevisionUid()), time.Now()) != "" {
			counts["secret"] += len(waiting[uid])
			continue
		}
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
