package gossipkey_test

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/control/gossipkey"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/state"
)

// proposer applies proposals to a state at once.
type proposer struct{ *state.Store }

func (p proposer) Propose(_ context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error) {
	var b state.Batch
	if err := build(p.Snapshot(), &b); err != nil || b.Len() == 0 {
		return p.Snapshot(), err
	}
	_, err := p.Apply(p.Snapshot().Index()+1, b.Transaction(time.Now()))
	return p.Snapshot(), err
}

// A cluster gets a key once, and another one when a server is removed.
func TestKeyStaysUntilItIsRotated(t *testing.T) {
	sealer, err := identity.OpenOrCreateSealer(filepath.Join(t.TempDir(), "kek.json"))
	if err != nil {
		t.Fatal(err)
	}
	p := proposer{state.New()}
	loop := gossipkey.Loop{Proposer: p, Cluster: "home", Sealer: sealer}
	key := func() []byte {
		t.Helper()
		if err := loop.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		opened, err := gossipkey.Open("home", sealer, p.Snapshot().GossipKey().GetSealed())
		if err != nil {
			t.Fatal(err)
		}
		return opened
	}
	first := key()
	if len(first) != 32 || !bytes.Equal(first, key()) {
		t.Errorf("the key of %d bytes changed although no server was removed", len(first))
	}
	_, err = p.Propose(t.Context(), func(snap *state.Snapshot, b *state.Batch) error {
		return gossipkey.Rotate("home", sealer, snap, b)
	})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(first, key()) {
		t.Error("the removed server still knows the key")
	}
}
