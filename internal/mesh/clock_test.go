package mesh

import (
	"bytes"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailscale/wireguard-go/conn"
	"github.com/tailscale/wireguard-go/device"
	"github.com/tailscale/wireguard-go/tun/tuntest"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// wire is a network on which the test delivers each packet itself.
type wire struct {
	sent    chan []byte
	arrived chan []byte
	from    *peer
	closed  chan struct{}
}

func (w *wire) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	closed := make(chan struct{})
	w.closed = closed
	return []conn.ReceiveFunc{func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		select {
		case packet := <-w.arrived:
			sizes[0], from[0] = copy(packets[0], packet), w.from
			return 1, nil
		case <-closed:
			return 0, net.ErrClosed
		}
	}}, 1, nil
}

func (w *wire) Send(packets [][]byte, to conn.Endpoint, offset int) error {
	for _, one := range packets {
		p := to.(*peer)
		p.count(&p.sentBytes, one[offset:])
		w.sent <- bytes.Clone(one[offset:])
	}
	return nil
}

func (w *wire) Close() error {
	if w.closed != nil {
		close(w.closed)
		w.closed = nil
	}
	return nil
}

func (*wire) SetMark(uint32) error                        { return nil }
func (*wire) ParseEndpoint(string) (conn.Endpoint, error) { return nil, conn.ErrWrongEndpointType }
func (*wire) BatchSize() int                              { return 1 }

// wired is a node with one peer.
func wired(t *testing.T, key PrivateKey, other Key) (*Mesh, *wire) {
	t.Helper()
	m := &Mesh{
		log: slog.New(slog.DiscardHandler), started: time.Now(),
		byID: map[string]*peer{}, byKey: map[Key]*peer{}, bySender: map[senderID]*peer{}, byAddress: map[relay.Address]*peer{},
	}
	m.secret.Store(&key)
	m.put(Peer{ID: "node/other", Key: other})
	network := &wire{sent: make(chan []byte, 100), arrived: make(chan []byte), from: m.byKey[other]}
	if err := m.addDevice(tuntest.NewChannelTUN().TUN(), network); err != nil {
		t.Fatal(err)
	}
	if err := m.device.Up(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m, network
}

// answers reports whether a node answers an initiation.
func (w *wire) answers(initiation []byte) bool {
	w.arrived <- initiation
	synctest.Wait()
	for {
		select {
		case packet := <-w.sent:
			if packet[0] == handshakeResponse {
				return true
			}
		default:
			return false
		}
	}
}

// WireGuard refuses handshakes that are older than the last one. A node whose clock was set back makes only such
// handshakes. It is refused only as long as the earlier session may still be in use.
func TestNodeWhoseClockWasSetBackIsAnsweredAfterItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, theirs := newKey(t), newKey(t)
		node, away := wired(t, theirs, mine.Public())
		_, here := wired(t, mine, theirs.Public())
		var initiations [2][]byte
		for i := range initiations {
			if err := node.device.LookupPeer(device.NoisePublicKey(mine.Public())).SendHandshakeInitiation(false); err != nil {
				t.Fatal(err)
			}
			initiations[i] = <-away.sent
			time.Sleep(10 * time.Second)
		}
		earlier, later := initiations[0], initiations[1]
		if !here.answers(later) {
			t.Fatal("an initiation is not answered")
		}
		time.Sleep(device.RejectAfterTime / 2)
		if here.answers(earlier) {
			t.Error("an older initiation is answered, which may be a replay that ends a session in use")
		}
		time.Sleep(device.RejectAfterTime / 2)
		synctest.Wait()
		if !here.answers(earlier) {
			t.Error("after the session, the node is still refused")
		}
	})
}
