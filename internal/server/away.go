package server

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// offlineNodes are the uids of the nodes that are offline. They are asked for
// with every replica that is shown or counted, and nodes seldom change.
type offlineNodes struct {
	nodes state.Generation
	uids  map[string]bool
}

// offlineOf are those of a snapshot.
func (s *Server) offlineOf(snap *state.Snapshot) *offlineNodes {
	nodes := snap.Generation(state.KindNode)
	if known := s.offline.Load(); known != nil && known.nodes == nodes {
		return known
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

// have reports whether a replica lives on one of them: it may still run there, and
// nobody can say.
func (o *offlineNodes) have(r *v1.Replica) bool {
	return len(o.uids) > 0 && o.uids[r.GetSpec().GetNodeUid()] && spec.Live(r.GetStatus().GetPhase())
}

// presentReplica is a replica as the API shows it: what is stored, with what
// only this server's memory holds, and in words if its node is offline, or if it
// has none.
func (s *Server) presentReplica(snap *state.Snapshot, stored *v1.Replica) *v1.Replica {
	if waits(stored) {
		return presentWaiting(stored)
	}
	if !s.offlineOf(snap).have(stored) {
		return s.progress.of(stored)
	}
	r := proto.CloneOf(stored)
	r.Status.Reason = fmt.Sprintf("node %s is offline; it was %s there", r.GetSpec().GetNode(), stored.GetStatus().GetPhase())
	r.Status.Phase, r.Status.Pid = spec.PhaseUnknown, 0
	return r
}

// waits reports whether a replica has no node, and it was written down why.
func waits(r *v1.Replica) bool {
	return r.GetStatus().GetPhase() == spec.PhasePending && r.GetStatus().GetReason() != "" &&
		r.GetSpec().GetNodeUid()+r.GetSpec().GetReservedNodeUid()+r.GetSpec().GetSucceeds() == ""
}

// presentWaiting says of which moment the reason is. It is written down once, with
// what was free then, so that replicas of one workload may differ in it.
func presentWaiting(stored *v1.Replica) *v1.Replica {
	status := proto.CloneOf(stored.GetStatus())
	status.Reason = fmt.Sprintf("when it began to wait: %s; for now, see: %s", status.GetReason(),
		spec.Hint(stored.GetMetadata().GetNamespace(), "cloudless explain "+stored.GetSpec().GetWorkload()))
	return &v1.Replica{
		ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(),
		Metadata: stored.GetMetadata(), Spec: stored.GetSpec(), Status: status,
	}
}

// presentReplicas does the same with what changes are to, and adds the replicas
// of nodes that have gone offline or come back.
func (s *Server) presentReplicas(snap *state.Snapshot, changes []state.Change) []state.Change {
	var shown []state.Change
	for _, c := range changes {
		switch now := c.New.(type) {
		case *v1.Replica:
			c.New = s.presentReplica(snap, now)
			shown = append(shown, c)
		case *v1.Node:
			for r := range turned(snap, c) {
				shown = append(shown, state.Change{Kind: state.KindReplica, Old: r, New: s.presentReplica(snap, r)})
			}
		default:
			shown = append(shown, c)
		}
	}
	return shown
}

// turned yields the living replicas of a node that a change takes offline or
// brings back.
func turned(snap *state.Snapshot, c state.Change) func(yield func(*v1.Replica) bool) {
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
