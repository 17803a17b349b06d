package gossip

import (
	"bytes"
	"fmt"

	"github.com/hashicorp/memberlist"
)

// UseKey encrypts from now on with another key, of 16, 24 or 32 bytes, and understands no other. Servers that switch at
// different moments do not understand each other in between: lost messages are repeated.
func (g *Gossip) UseKey(key []byte) error {
	if err := g.ring.AddKey(key); err != nil {
		return fmt.Errorf("use a key for the gossip: %w", err)
	}
	if err := g.ring.UseKey(key); err != nil {
		return fmt.Errorf("use a key for the gossip: %w", err)
	}
	for _, old := range g.ring.GetKeys() {
		if bytes.Equal(old, key) {
			continue
		}
		if err := g.ring.RemoveKey(old); err != nil {
			return fmt.Errorf("forget an old key of the gossip: %w", err)
		}
	}
	return nil
}

// newRing holds the first key, if there is one. Without one no encrypted message is understood.
func newRing(key []byte) (*memberlist.Keyring, error) {
	ring, err := memberlist.NewKeyring(nil, key)
	if err != nil {
		return nil, fmt.Errorf("take the key for the gossip: %w", err)
	}
	return ring, nil
}

// Expel cuts the connections to a removed server and forgets it. The Network must refuse its new connections.
func (g *Gossip) Expel(id string) error {
	g.expelled.Store(id, true)
	g.transport.cut(id)
	if err := g.serf.RemoveFailedNode(id); err != nil {
		return fmt.Errorf("forget the removed server %s: %w", id, err)
	}
	return nil
}
