package replicas

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// view is the state as the scheduler sees it.
func view(snap *state.Snapshot) scheduler.Snapshot {
	var s scheduler.Snapshot
	for n := range snap.Nodes("") {
		s.Nodes = append(s.Nodes, viewNode(snap, n))
	}
	return s
}

func viewNode(snap *state.Snapshot, n *v1.Node) scheduler.Node {
	node, err := scheduler.NodeFromProto(n)
	if err != nil {
		node.Unschedulable = "has reported what cannot be understood: " + err.Error()
	}
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		revision := snap.Revision(r.GetSpec().GetRevisionUid())
		if rollout.Ended(r.GetStatus().GetPhase()) || revision == nil {
			continue
		}
		needs, err := scheduler.RequirementsFromProto(revision.GetSpec().GetWorkload())
		if err != nil {
			continue
		}
		node.Add(r.GetSpec().GetWorkloadUid(), r.GetSpec().GetWorkload(), needs)
	}
	return node
}

// Placement answers questions about placement from a snapshot.
type Placement struct{}

// Explain says, for each node, why it cannot take the pending replicas of a
// workload. It is empty when they all fit.
func (Placement) Explain(snap *state.Snapshot, workloadUID string) []*v1.NodeReason {
	t := &tick{snap: snap}
	var pending []*v1.Replica
	for r := range snap.ReplicasOf(workloadUID) {
		if r.GetSpec().GetNodeUid() == "" && rollout.Live(r.GetStatus().GetPhase()) {
			pending = append(pending, r)
		}
	}
	if len(pending) == 0 {
		return nil
	}
	needs, err := t.needs(pending[0])
	if err != nil {
		return nil
	}
	plan := scheduler.Schedule(view(snap), scheduler.Request{Asks: []scheduler.Ask{{
		Workload: workloadUID, Name: pending[0].GetSpec().GetWorkload(), Count: len(pending), Requirements: needs,
	}}})
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
	node := viewNode(snap, n)
	return &v1.NodeResources{Cpu: spec.FormatCPU(node.Requested.CPU), Memory: spec.FormatBytes(node.Requested.Memory)}
}
