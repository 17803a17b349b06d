package mesh

import (
	"log/slog"
	"testing"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

func TestNodeIsNotItsOwnPeer(t *testing.T) {
	key, err := NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	earlier, err := NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	m := &Mesh{
		opts: Options{Setup: Setup{ID: "node/1"}}, log: slog.New(slog.DiscardHandler),
		byID: map[string]*peer{}, byKey: map[Key]*peer{}, bySender: map[senderID]*peer{}, byAddress: map[relay.Address]*peer{},
	}
	m.secret.Store(&key)
	for _, p := range []Peer{
		{ID: "node/1", Key: key.Public()},
		{ID: "node/1", Key: earlier.Public()}, // as the servers know it until they hear of the new key
		{ID: "node/2", Key: key.Public()},     // a copy of this machine
	} {
		m.put(p)
	}
	if len(m.byID) != 0 {
		t.Errorf("peers are %v", m.byID)
	}
}
