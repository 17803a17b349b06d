package server

import (
	"context"
	"iter"

	"google.golang.org/grpc"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// nodeService is the NodeService.
type nodeService struct {
	v1.UnimplementedNodeServiceServer
	*Server
}

func (s *nodeService) GetNode(ctx context.Context, request *v1.GetNodeRequest) (*v1.Node, error) {
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	n := snap.NodeByName(request.GetName())
	if n == nil {
		return nil, notFound("node", "", request.GetName())
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
