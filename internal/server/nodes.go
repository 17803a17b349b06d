package server

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
)

// nodeService is the NodeService.
type nodeService struct {
	v1.UnsafeNodeServiceServer
	*collection[*v1.Node]
}

func newNodes(s *Server) *collection[*v1.Node] {
	c := newCollection[*v1.Node](s, state.KindNode)
	c.labels, c.present = spec.NodeLabels, s.presentNode
	return c
}

func (s *nodeService) GetNode(ctx context.Context, request *v1.GetNodeRequest) (*v1.Node, error) {
	return s.read(ctx, "", request.GetName())
}

func (s *nodeService) ListNodes(ctx context.Context, request *v1.ListNodesRequest) (*v1.ListNodesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Node]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	return &v1.ListNodesResponse{Items: items, Next: next}, nil
}

// DeleteNode expels a node, which then stops its replicas. A node with replicas, or the only node, is removed only by
// force. The state refuses the node's calls as soon as the transaction commits. When this call returns, every reachable
// server has also closed its connections to the node (see removal.go).
func (s *nodeService) DeleteNode(ctx context.Context, request *v1.DeleteNodeRequest) (*v1.Node, error) {
	var removed *v1.Node
	var event *v1.Event
	after, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		removed = snap.NodeByName(request.GetName())
		if removed == nil {
			return s.missing(snap, "", request.GetName())
		}
		m := removed.GetMetadata()
		if err := s.sameVersion(removed, request.GetVersion()); err != nil {
			return err
		}
		if !request.GetForce() {
			if err := checkNodeRemovable(snap, removed); err != nil {
				return err
			}
		}
		lost := s.loseReplicas(snap, b, removed)
		b.DeleteVersion(state.KindNode, m.GetUid(), m.GetVersion())
		if err := s.membership.RecordRemoval(b, identity.KindNode, m.GetUid()); err != nil {
			return err
		}
		event = s.Event(ctx, removed, "Removed", fmt.Sprintf("%d replicas on it count as lost", lost))
		b.Create(event)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.membership.WaitActedOn(ctx, after, event)
	return removed, nil
}

// checkRemovable refuses to remove a node that has replicas or is the only one.
func checkNodeRemovable(snap *state.Snapshot, n *v1.Node) error {
	name, live := n.GetMetadata().GetName(), 0
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if !spec.Ended(r.GetStatus().GetPhase()) {
			live++
		}
	}
	switch {
	case snap.Count(state.KindNode) == 1:
		return core.Refuse(codes.FailedPrecondition, "node %s is the last node of the cluster, and nothing would run without it (%s on it now): "+
			"add another node first with: cloudless token create --role node, or remove it all the same with --force", name, spec.CountReplicas(live))
	case live > 0:
		return core.Refuse(codes.FailedPrecondition, "node %s has %s: move what it has to other nodes first with: cloudless node taint %s leaving:NoExecute, "+
			"or remove it all the same with --force, and they count as lost", name, spec.CountReplicas(live), name)
	}
	return nil
}

func (s *nodeService) CordonNode(ctx context.Context, request *v1.CordonNodeRequest) (*v1.Node, error) {
	return s.changeSpec(ctx, request, func(n *v1.Node) (reason, message string, _ error) {
		wanted := n.GetSpec()
		if wanted.GetAvailability() == spec.AvailabilityCordoned && (request.GetReason() == "" || request.GetReason() == wanted.GetAvailabilityReason()) {
			return "", "", nil
		}
		wanted.Availability, wanted.AvailabilityReason, wanted.AvailabilityBy = spec.AvailabilityCordoned, request.GetReason(), s.Actor(ctx)
		return "Cordoned", cmp.Or(request.GetReason(), "nothing new is placed on it; what runs there stays"), nil
	})
}

func (s *nodeService) UncordonNode(ctx context.Context, request *v1.UncordonNodeRequest) (*v1.Node, error) {
	return s.changeSpec(ctx, request, func(n *v1.Node) (reason, message string, _ error) {
		wanted := n.GetSpec()
		if wanted.GetAvailability() == "" {
			return "", "", nil
		}
		before := wanted.GetAvailability()
		wanted.Availability, wanted.AvailabilityReason, wanted.AvailabilityBy = "", "", ""
		return "Uncordoned", "was " + before, nil
	})
}

// changeSpec changes the spec of a node. The same transaction sets the state that follows from it, so that nothing is
// placed in between. If change returns no reason, nothing is written.
func (s *nodeService) changeSpec(ctx context.Context, request interface {
	GetName() string
	GetVersion() uint64
}, change func(*v1.Node) (reason, message string, err error),
) (*v1.Node, error) {
	return s.changeNamed(ctx, "", request.GetName(), request.GetVersion(), func(tx *transaction, old *v1.Node) (*v1.Node, error) {
		n := proto.CloneOf(old)
		if n.Spec == nil {
			n.Spec = &v1.NodeSpec{}
		}
		reason, message, err := change(n)
		if err != nil || reason == "" {
			return old, err
		}
		s.nodes.Settle(n)
		tx.batch.Update(n, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, n, reason, message))
		return n, nil
	})
}

// loseReplicas ends the replicas of a node that will never report again.
func (s *nodeService) loseReplicas(snap *state.Snapshot, b *state.Batch, n *v1.Node) (lost int) {
	for old := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if spec.Ended(old.GetStatus().GetPhase()) {
			continue
		}
		r := proto.CloneOf(old)
		r.Status.Phase = spec.PhaseLost
		r.Status.Reason = "node " + n.GetMetadata().GetName() + " was removed"
		r.Status.EndTime = timestamppb.New(s.Now())
		b.Update(r, old.GetMetadata().GetVersion())
		lost++
	}
	return lost
}

func (s *nodeService) WatchNodes(request *v1.WatchNodesRequest, stream grpc.ServerStreamingServer[v1.NodeChange]) error {
	matches, err := s.matcher(selection[*v1.Node]{labels: request.GetLabels()})
	if err != nil {
		return err
	}
	out := newTracker(func(change string, n *v1.Node) error {
		return stream.Send(&v1.NodeChange{Change: change, Node: n})
	})
	return s.Server.watch(stream.Context(), func(snap *state.Snapshot) error {
		for n := range snap.Nodes("") {
			if matches(n) {
				if err := out.present(n.GetMetadata().GetUid(), n); err != nil {
					return err
				}
			}
		}
		return stream.Send(&v1.NodeChange{Change: changeSynced})
	}, func(_ *state.Snapshot, changes []state.Change) error {
		return eachChanged(changes, out, matches)
	})
}
