package replicas

import (
	"errors"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// view is the state as the scheduler sees it, without one replica if its uid
// is given.
func view(snap *state.Snapshot, without string) scheduler.Snapshot {
	var s scheduler.Snapshot
	known := requirements{}
	for n := range snap.Nodes("") {
		s.Nodes = append(s.Nodes, viewNode(snap, n, without, known))
	}
	return s
}

// requirements of revisions by uid: all replicas of one have the same, and
// reading them is dear. What cannot be read is nil.
type requirements map[string]*scheduler.Requirements

func (known requirements) of(snap *state.Snapshot, revisionUID string) *scheduler.Requirements {
	if needs, ok := known[revisionUID]; ok {
		return needs
	}
	known[revisionUID] = nil
	if needs, err := needsOf(snap, revisionUID); err == nil {
		known[revisionUID] = &needs
	}
	return known[revisionUID]
}

func viewNode(snap *state.Snapshot, n *v1.Node, without string, known requirements) scheduler.Node {
	node, err := scheduler.NodeFromProto(n)
	if err != nil {
		node.Unschedulable = "has reported what cannot be understood: " + err.Error()
	}
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if rollout.Ended(r.GetStatus().GetPhase()) || r.GetMetadata().GetUid() == without {
			continue
		}
		if needs := known.of(snap, r.GetSpec().GetRevisionUid()); needs != nil {
			node.Add(r.GetSpec().GetWorkloadUid(), r.GetSpec().GetWorkload(), *needs)
		}
	}
	return node
}

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
type Placement struct{}

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
	var plan scheduler.Plan
	var err error
	switch {
	case pending > 0:
		plan, err = planFor(snap, w, pending, "")
	case outdated != nil:
		plan, err = successor(snap, w, outdated)
	}
	if err != nil {
		return nil
	}
	var reasons []*v1.NodeReason
	for _, u := range plan.Unplaced {
		for _, n := range u.Nodes {
			reasons = append(reasons, &v1.NodeReason{Node: n.NodeName, Reason: n.String()})
		}
	}
	return reasons
}

// successor plans one replica of the current revision in place of an old one.
func successor(snap *state.Snapshot, w *v1.Workload, old *v1.Replica) (scheduler.Plan, error) {
	return planFor(snap, w, 1, old.GetMetadata().GetUid())
}

func planFor(snap *state.Snapshot, w *v1.Workload, count int, without string) (scheduler.Plan, error) {
	needs, err := needsOf(snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return scheduler.Plan{}, err
	}
	return scheduler.Schedule(view(snap, without), scheduler.Request{Asks: []scheduler.Ask{{
		Workload: w.GetMetadata().GetUid(), Name: w.GetMetadata().GetName(), Count: count, Requirements: needs,
	}}}), nil
}

func needsOf(snap *state.Snapshot, revisionUID string) (scheduler.Requirements, error) {
	revision := snap.Revision(revisionUID)
	if revision == nil {
		return scheduler.Requirements{}, errors.New("its revision does not exist any more")
	}
	needs, err := scheduler.RequirementsFromProto(revision.GetSpec().GetWorkload())
	needs.Namespace = revision.GetMetadata().GetNamespace()
	return needs, err
}

// Requested is the sum of what is promised to the replicas on a node.
func (Placement) Requested(snap *state.Snapshot, nodeUID string) *v1.NodeResources {
	n := snap.Node(nodeUID)
	if n == nil {
		return nil
	}
	node := viewNode(snap, n, "", requirements{})
	return &v1.NodeResources{Cpu: spec.FormatCPU(node.Requested.CPU), Memory: spec.FormatBytes(node.Requested.Memory)}
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
	var request scheduler.Request
	for uid, count := range waiting {
		needs, err := needsOf(snap, snap.Workload(uid).GetStatus().GetRevisionUid())
		if err != nil {
			counts["revision"] += count
			continue
		}
		request.Asks = append(request.Asks, scheduler.Ask{Workload: uid, Count: count, Requirements: needs})
	}
	if len(request.Asks) == 0 {
		return counts
	}
	plan := scheduler.Schedule(view(snap, ""), request)
	if found := len(plan.Placements); found > 0 {
		counts["placing"] = found
	}
	for _, u := range plan.Unplaced {
		counts[mainReason(u)] += u.Count
	}
	return counts
}

// mainReason is the filter that refused most nodes.
func mainReason(u scheduler.Unplaced) string {
	reason, most := "nodes", 0
	for _, g := range u.Groups() {
		if len(g.Nodes) > most {
			reason, most = g.Filter, len(g.Nodes)
		}
	}
	return reason
}
