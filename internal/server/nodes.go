package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
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
	c.prepare = func(_ context.Context, given *v1.Node, _ *preparation) (builder[*v1.Node], error) {
		return &nodeBuilder{collection: c, given: given}, nil
	}
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
		lost := placement.LoseReplicas(s.Now(), snap, b, removed)
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

// checkNodeRemovable refuses to remove a node that has replicas or is the only one.
func checkNodeRemovable(snap *state.Snapshot, n *v1.Node) error {
	name, live := n.GetMetadata().GetName(), placement.LiveOn(snap, n)
	switch {
	case snap.Count(state.KindNode) == 1:
		return core.Refuse(codes.FailedPrecondition, "node %s is the last node of the cluster, and nothing would run without it (%s on it now): "+
			"add another node first with: cloudless token create --role node, or remove it all the same with --force", name, spec.Count(live, "replica"))
	case live > 0:
		return core.Refuse(codes.FailedPrecondition, "node %s has %s: move what it has to other nodes first with: cloudless node drain %s, "+
			"or remove it all the same with --force, and they count as lost", name, spec.Count(live, "replica"), name)
	}
	return nil
}

func (s *nodeService) WatchNodes(request *v1.WatchNodesRequest, stream grpc.ServerStreamingServer[v1.NodeChange]) error {
	matches, err := s.matcher(stream.Context(), selection[*v1.Node]{labels: request.GetLabels()})
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
