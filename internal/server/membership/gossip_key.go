package membership

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/gossipkey"
	"github.com/cloudless/cloudless/internal/control/workloadkeys"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/state"
)

// GossipKey returns the key in the state and its version; no key if this server has no
// state yet.
func (s *Membership) GossipKey() (key []byte, version uint64, err error) {
	stored := s.Store.Snapshot().GossipKey()
	if stored == nil {
		return nil, 0, nil
	}
	key, err = s.openGossipKey(stored.GetSealed())
	return key, stored.GetMetadata().GetVersion(), err
}

func (s *Membership) openGossipKey(sealed []byte) ([]byte, error) {
	return gossipkey.Open(s.ca.Trust().Cluster(), s.sealer, sealed)
}

// RotateGossipKey adds a new gossip key to a transaction that removes a server. The key that signs tokens of workloads,
// which that server knows as well, retires.
func (s *Membership) RotateGossipKey(snap *state.Snapshot, b *state.Batch) error {
	workloadkeys.Replace(s.Now(), snap, b)
	return gossipkey.Rotate(s.ca.Trust().Cluster(), s.sealer, snap, b)
}

// GetGossipKey returns the key to another server.
func (s *Membership) GetGossipKey(context.Context, *v1.GetGossipKeyRequest) (*v1.GetGossipKeyResponse, error) {
	stored := s.Store.Snapshot().GossipKey()
	return &v1.GetGossipKeyResponse{Version: stored.GetMetadata().GetVersion(), Sealed: stored.GetSealed()}, nil
}

// AskGossipKey asks the server at an address for the key and its version. It fails with
// ErrRemoved if that server knows that this one was removed.
func (s *Membership) AskGossipKey(ctx context.Context, address string) (key []byte, version uint64, err error) {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(credentials.NewTLS(peers.TLS(s.PeerConfig(), ""))))
	if err != nil {
		return nil, 0, fmt.Errorf("connect to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	answer, err := v1.NewPeerServiceClient(conn).GetGossipKey(ctx, &v1.GetGossipKeyRequest{})
	if core.HasReason(err, core.ReasonRemoved) {
		return nil, 0, ErrRemoved
	}
	if err != nil {
		return nil, 0, fmt.Errorf("ask the server at %s for the key of the gossip: %w", address, err)
	}
	if len(answer.GetSealed()) == 0 {
		return nil, 0, nil
	}
	key, err = s.openGossipKey(answer.GetSealed())
	return key, answer.GetVersion(), err
}
