// Package gossipkey manages the key of the servers' gossip: it generates the key, seals it into the state and rotates
// it. The leader's loop adds one to a cluster that was bootstrapped without.
//
// Gossip runs over mutual TLS, and is encrypted once more inside it with this key. The key changes in the transaction
// that removes a server. A server that has not heard of the removal, and still listens to the removed one, then cannot
// relay messages between it and the others. The package does not know the gossiping servers.
package gossipkey

import (
	"context"
	"crypto/rand"
	"fmt"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// keySize is that of AES-256.
const keySize = 32

// New generates a key.
func New(cluster string, sealer *identity.Sealer) (*statev1.GossipKey, error) {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("draw a key for the gossip: %w", err)
	}
	sealed, err := sealer.Seal(key, state.GossipKeyContext(cluster))
	if err != nil {
		return nil, err
	}
	return &statev1.GossipKey{Metadata: &v1.Metadata{Uid: cluster}, Sealed: sealed}, nil
}

// Open opens a sealed key.
func Open(cluster string, sealer *identity.Sealer, sealed []byte) ([]byte, error) {
	return sealer.Unseal(sealed, state.GossipKeyContext(cluster))
}

// Rotate replaces the key that a removed server knows. Without a sealer the server is alone, and there is no gossip.
func Rotate(cluster string, sealer *identity.Sealer, snap *state.Snapshot, b *state.Batch) error {
	if sealer == nil {
		return nil
	}
	next, err := New(cluster, sealer)
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

// Proposer changes the state.
type Proposer interface {
	Propose(ctx context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error)
}

// Loop adds a key to a cluster that was bootstrapped without one. It ends when there is one.
type Loop struct {
	Proposer Proposer
	Cluster  string
	Sealer   *identity.Sealer
}

// Run ends when the cluster has a key.
func (l *Loop) Run(ctx context.Context) error {
	_, err := l.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if snap.GossipKey() != nil {
			return nil
		}
		return Rotate(l.Cluster, l.Sealer, snap, b)
	})
	return err
}
