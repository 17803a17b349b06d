package server

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// offlineNodes caches the uids of the offline nodes. Every replica that is shown or counted
// needs them, and nodes seldom change.
type offlineNodes struct {
	nodes state.Generation
	uids  map[string]bool
}

// offlineIn returns the offline nodes of a snapshot.
func (s *Server) offlineIn(snap *state.Snapshot) *offlineNodes {
	nodes := snap.Generation(state.KindNode)
	if cached := s.offline.Load(); cached != nil && cached.nodes == nodes {
		return cached
	}
	found := &offlineNodes{nodes: nodes, uids: map[string]bool{}}
	for n := range snap.Nodes("") {
		if n.GetStatus().GetState() == spec.NodeOffline {
			found.uids[n.GetMetadata().GetUid()] = true
		}
	}
	s.offline.Store(found)
	return found
}

// host reports whether a live replica is on an offline node. It may still run there, but
// that is unknown.
func (o *offlineNodes) host(r *v1.Replica) bool {
	return len(o.uids) > 0 && o.uids[r.GetSpec().GetNodeUid()] && spec.Live(r.GetStatus().GetPhase())
}

// presentReplica returns a replica as the API shows it: the stored one, with what only this
// server's memory holds, and with a reason if it has no node or its node is offline.
func (s *Server) presentReplica(snap *state.Snapshot, stored *v1.Replica) *v1.Replica {
	if isWaiting(stored) {
		return presentWaiting(stored)
	}
	if !s.offlineIn(snap).host(stored) {
		return s.sessions.WithProgress(stored)
	}
	r := proto.CloneOf(stored)
	r.Status.Reason = fmt.Sprintf("node %s is offline; it was %s there", r.GetSpec().GetNode(), stored.GetStatus().GetPhase())
	r.Status.Phase, r.Status.Pid = spec.PhaseUnknown, 0
	return r
}

// isWaiting reports whether a replica has no node and a reason for that is stored.
func isWaiting(r *v1.Replica) bool {
	return r.GetStatus().GetPhase() == spec.PhasePending && r.GetStatus().GetReason() != "" &&
		r.GetSpec().GetNodeUid()+r.GetSpec().GetReservedNodeUid()+r.GetSpec().GetSucceeds() == ""
}

// presentWaiting replaces the stored reason, which is from the moment when the replica began
// to wait, by the command that shows the present one.
func presentWaiting(stored *v1.Replica) *v1.Replica {
	status := proto.CloneOf(stored.GetStatus())
	status.Reason = "cannot be placed " + explainHint(stored.GetMetadata().GetNamespace(), stored.GetSpec().GetWorkload())
	return &v1.Replica{
		ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(),
		Metadata: stored.GetMetadata(), Spec: stored.GetSpec(), Status: status,
	}
}

// explainHint is the command that says why replicas of a workload have no node.
func explainHint(namespace, workload string) string {
	return fmt.Sprintf("(details: %s)", spec.Hint(namespace, "cloudless explain "+workload))
}

// presentReplicas does the same with the replicas in changes, and adds the replicas of
// nodes that have gone offline or come back.
func (s *Server) presentReplicas(snap *state.Snapshot, changes []state.Change) []state.Change {
	var shown []state.Change
	for _, c := range changes {
		switch now := c.New.(type) {
		case *v1.Replica:
			c.New = s.presentReplica(snap, now)
			shown = append(shown, c)
		case *v1.Node:
			for r := range affectedReplicas(snap, c) {
				shown = append(shown, state.Change{Kind: state.KindReplica, Old: r, New: s.presentReplica(snap, r)})
			}
		default:
			shown = append(shown, c)
		}
	}
	return shown
}

// affectedReplicas yields the live replicas of a node that goes offline or comes back with
// a change.
func affectedReplicas(snap *state.Snapshot, c state.Change) func(yield func(*v1.Replica) bool) {
	return func(yield func(*v1.Replica) bool) {
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		if (before.GetStatus().GetState() == spec.NodeOffline) == (after.GetStatus().GetState() == spec.NodeOffline) {
			return
		}
		for r := range snap.ReplicasOn(after.GetMetadata().GetUid()) {
			if spec.Live(r.GetStatus().GetPhase()) && !yield(r) {
				return
			}
		}
	}
}
