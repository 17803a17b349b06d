package server

import (
	"context"
	"fmt"
	"iter"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// nodeService is the NodeService.
type nodeService struct {
	v1.UnsafeNodeServiceServer
	*Server
}

func (s *nodeService) GetNode(ctx context.Context, request *v1.GetNodeRequest) (*v1.Node, error) {
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	n := snap.NodeByName(request.GetName())
	if n == nil {
		return nil, missingNode(snap, request.GetName())
	}
	return s.presentNode(snap, n), nil
}

func (s *nodeService) ListNodes(ctx context.Context, request *v1.ListNodesRequest) (*v1.ListNodesResponse, error) {
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	selector, err := spec.ParseSelector(request.GetLabels())
	if err != nil {
		return nil, err
	}
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Node] { return snap.Nodes(after) }, byPath,
		func(n *v1.Node) bool { return selector.Matches(n.GetMetadata().GetLabels()) })
	if err != nil {
		return nil, err
	}
	for i, n := range items {
		items[i] = s.presentNode(snap, n)
	}
	return &v1.ListNodesResponse{Items: items, Next: next}, nil
}

// DeleteNode expels a node. The state refuses its calls from the moment of the
// transaction; when this call is answered, every server that can be reached has
// closed its connections too (see removal.go).
func (s *nodeService) DeleteNode(ctx context.Context, request *v1.DeleteNodeRequest) (*v1.Node, error) {
	var removed *v1.Node
	var event *v1.Event
	after, err := s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		removed = snap.NodeByName(request.GetName())
		if removed == nil {
			return missingNode(snap, request.GetName())
		}
		m := removed.GetMetadata()
		if request.GetVersion() != 0 && request.GetVersion() != m.GetVersion() {
			return &outdated{current: removed, err: &state.ConflictError{
				Kind: state.KindNode, Name: m.GetName(), UID: m.GetUid(), Expected: request.GetVersion(), Actual: m.GetVersion(),
			}}
		}
		lost := s.loseReplicas(snap, b, removed)
		b.DeleteVersion(state.KindNode, m.GetUid(), m.GetVersion())
		event = s.event(ctx, removed, "Removed", fmt.Sprintf("%d replicas on it count as lost", lost))
		b.Create(event)
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.untilActedOn(ctx, after, event)
	return removed, nil
}

// loseReplicas ends the replicas of a node that nobody will hear of again.
func (s *nodeService) loseReplicas(snap *state.Snapshot, b *state.Batch, n *v1.Node) (lost int) {
	for old := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if rollout.Ended(old.GetStatus().GetPhase()) {
			continue
		}
		r := proto.CloneOf(old)
		r.Status.Phase = rollout.PhaseLost
		r.Status.Reason = "node " + n.GetMetadata().GetName() + " was removed"
		r.Status.EndTime = timestamppb.New(s.now())
		b.Update(r, old.GetMetadata().GetVersion())
		lost++
	}
	return lost
}

func (s *nodeService) WatchNodes(request *v1.WatchNodesRequest, stream grpc.ServerStreamingServer[v1.NodeChange]) error {
	selector, err := spec.ParseSelector(request.GetLabels())
	if err != nil {
		return err
	}
	matches := func(n *v1.Node) bool { return selector.Matches(n.GetMetadata().GetLabels()) }
	out := newTracker(func(change string, n *v1.Node) error {
		return stream.Send(&v1.NodeChange{Change: change, Node: n})
	})
	return s.watch(stream.Context(), func(snap *state.Snapshot) error {
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
