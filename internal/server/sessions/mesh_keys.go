package sessions

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// meshKeys remembers which connected node announced which key in the mesh. The state has the keys only a moment later.
type meshKeys struct {
	mu     sync.Mutex
	byNode map[string]string
	nodes  map[string]string // by key
}

// claim gives a key to a node, in place of its earlier one. It returns the node that has the key already, if any.
func (k *meshKeys) claim(node, key string) (holder string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if holder = k.nodes[key]; holder != "" && holder != node {
		return holder
	}
	delete(k.nodes, k.byNode[node])
	k.byNode[node], k.nodes[key] = key, node
	return ""
}

func (k *meshKeys) release(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.nodes, k.byNode[node])
	delete(k.byNode, node)
}

// checkMeshKey refuses a key in the mesh that another node has: peers know a node by its key, and would send the packets
// of one to the other.
func (s *Sessions) checkMeshKey(ctx context.Context, node string, status *v1.NodeStatus) error {
	key := status.GetMesh().GetKey()
	if key == "" {
		return nil
	}
	snap := s.Store.Snapshot()
	for other := range snap.NodesWithMeshKey(key) {
		if uid := other.GetMetadata().GetUid(); uid != node {
			return s.refuseMeshKey(ctx, snap, node, uid)
		}
	}
	if holder := s.meshKeys.claim(node, key); holder != "" {
		return s.refuseMeshKey(ctx, snap, node, holder)
	}
	return nil
}

// refuseMeshKey refuses a node with the key of another one, and reports it once.
func (s *Sessions) refuseMeshKey(ctx context.Context, snap *state.Snapshot, node, holder string) error {
	refused := snap.Node(node)
	problem := fmt.Sprintf("node %s has the same key in the mesh as node %s, as if its data folder was copied, and cannot connect: on %s stop cloudless, delete agent/mesh.key in the data folder and start cloudless again, which makes a new key",
		refused.GetMetadata().GetName(), snap.Node(holder).GetMetadata().GetName(), refused.GetMetadata().GetName())
	s.noteDuplicate(ctx, refused, "MeshKeyTaken", problem)
	return core.Refuse(codes.FailedPrecondition, "%s", problem)
}
