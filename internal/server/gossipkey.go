package server

import (
	"context"
	"crypto/rand"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/state"
)

// The servers' gossip runs over mutual TLS, and is encrypted once more inside it
// by a key that lies sealed in the state. It changes in the transaction that
// removes a server, so that whoever still listens to the removed one, because
// it has not heard of the removal, cannot carry its words to the others, nor
// theirs to it. A server that was away when the key changed, and one that has
// just joined, asks another server for it.

// gossipKeySize makes it a key of AES-256.
const gossipKeySize = 32

// gossipKeyContext binds the sealed key to its use.
func gossipKeyContext(cluster string) string { return "cloudless/gossip-key/" + cluster }

// newGossipKey draws a key.
func newGossipKey(cluster string, sealer *identity.Sealer) (*statev1.GossipKey, error) {
	key := make([]byte, gossipKeySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("draw a key for the gossip: %w", err)
	}
	sealed, err := sealer.Seal(key, gossipKeyContext(cluster))
	if err != nil {
		return nil, err
	}
	return &statev1.GossipKey{Metadata: &v1.Metadata{Uid: cluster}, Sealed: sealed}, nil
}

// rotateGossipKey puts another key in the place of the one that a removed server
// knows.
func (s *Server) rotateGossipKey(snap *state.Snapshot, b *state.Batch) error {
	if s.sealer == nil {
		return nil // alone, and without anybody to gossip with
	}
	next, err := newGossipKey(s.ca.Trust().Cluster(), s.sealer)
	if err != nil {
		return err
	}
	if old := snap.GossipKey(); old != nil {
		next.Metadata = proto.CloneOf(old.GetMetadata())
		b.Update(next, old.GetMetadata().GetVersion())
	} else {
		b.Create(next)
	}
	return nil
}

// EnsureGossipKey gives a key to a cluster that was founded without one.
func (s *Server) EnsureGossipKey(ctx context.Context) error {
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.GossipKey() != nil {
			return nil
		}
		return s.rotateGossipKey(snap, b)
	})
	return err
}

// GossipKey is the key as the state has it, and its version; none if the state
// is not there yet.
func (s *Server) GossipKey() (key []byte, version uint64, err error) {
	stored := s.Store.Snapshot().GossipKey()
	if stored == nil {
		return nil, 0, nil
	}
	key, err = s.openGossipKey(stored.GetSealed())
	return key, stored.GetMetadata().GetVersion(), err
}

func (s *Server) openGossipKey(sealed []byte) ([]byte, error) {
	return s.sealer.Unseal(sealed, gossipKeyContext(s.ca.Trust().Cluster()))
}

// GetGossipKey tells another server the key.
func (s *peerService) GetGossipKey(context.Context, *v1.GetGossipKeyRequest) (*v1.GetGossipKeyResponse, error) {
	stored := s.Store.Snapshot().GossipKey()
	return &v1.GetGossipKeyResponse{Version: stored.GetMetadata().GetVersion(), Sealed: stored.GetSealed()}, nil
}

// AskGossipKey asks the server at an address for the key, and for its version. It
// fails with ErrRemoved if that one knows that this one was removed.
func (s *Server) AskGossipKey(ctx context.Context, address string) (key []byte, version uint64, err error) {
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
