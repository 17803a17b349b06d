// Package gossipkey is the key of the servers' gossip: it draws it, seals it into
// the state and replaces it, and the leader's loop gives one to a cluster that was
// founded without.
//
// The gossip runs over mutual TLS, and is encrypted once more inside it by this
// key. It changes in the transaction that removes a server. A server that has not
// heard of the removal, and still listens to the removed one, then cannot carry
// words between it and the others. The package does not know who gossips.
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

// keySize makes it a key of AES-256.
const keySize = 32

// useOf binds the sealed key to its use.
func useOf(cluster string) string { return "cloudless/gossip-key/" + cluster }

// New draws a key.
func New(cluster string, sealer *identity.Sealer) (*statev1.GossipKey, error) {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("draw a key for the gossip: %w", err)
	}
	sealed, err := sealer.Seal(key, useOf(cluster))
	if err != nil {
		return nil, err
	}
	return &statev1.GossipKey{Metadata: &v1.Metadata{Uid: cluster}, Sealed: sealed}, nil
}

// Open opens a sealed key.
func Open(cluster string, sealer *identity.Sealer, sealed []byte) ([]byte, error) {
	return sealer.Unseal(sealed, useOf(cluster))
}

// Rotate puts another key in the place of the one that a removed server knows. Without a sealer the server is alone, and
// has nobody to gossip with.
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

// Loop gives a key to a cluster that was founded without one. It ends when there is one.
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
