package network

import (
	"context"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// GetNetworkStatus asks nodes how they reach their peers. A node that does not answer is listed with the reason.
func (s *Service) GetNetworkStatus(ctx context.Context, request *v1.GetNetworkStatusRequest) (*v1.NetworkStatus, error) {
	nodes, err := chosenNodes(s.Store.Snapshot(), request.GetNodes())
	if err != nil {
		return nil, err
	}
	answer := &v1.NetworkStatus{Nodes: make([]*v1.NodeNetwork, len(nodes))}
	forEach(nodes, func(i int, n *v1.Node) {
		up, err := s.ask(ctx, n, &v1.Open{What: &v1.Open_NetworkStatus{NetworkStatus: &v1.OpenNetworkStatus{All: request.GetAll()}}})
		found := up.GetNetworkStatus()
		if found == nil {
			found = &v1.NodeNetwork{}
		}
		if err != nil {
			found.Error = err.Error()
		}
		found.Node = n.GetMetadata().GetName()
		answer.Nodes[i] = found
	})
	return answer, ctx.Err()
}

// chosenNodes finds nodes by name. Without names, they are all ready ones.
func chosenNodes(snap *state.Snapshot, names []string) (chosen []*v1.Node, err error) {
	for _, name := range names {
		n := snap.NodeByName(name)
		if n == nil {
			near := suggest.To(name, notfound.Names(snap.Nodes("")))
			return nil, core.Refuse(codes.NotFound, "node %s does not exist%s", name, notfound.Hint(near, "cloudless node ls"))
		}
		chosen = append(chosen, n)
	}
	if len(names) > 0 {
		return chosen, nil
	}
	for n := range snap.Nodes("") {
		if n.GetStatus().GetState() == spec.NodeReady {
			chosen = append(chosen, n)
		}
	}
	return chosen, nil
}
