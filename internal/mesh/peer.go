package mesh

import (
	"crypto/cipher"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// Peer is another machine of the mesh, as its caller knows it.
type Peer struct {
	// ID is the identity by which relays know it, such as "node/0190…".
	ID   string
	Name string
	Key  Key
	// Prefixes are the addresses behind it.
	Prefixes []netip.Prefix
	// Candidates are the addresses by which it may be reached directly.
	Candidates []netip.AddrPort
	// Relay is the id of the relay that it is connected to.
	Relay string
}

func (p Peer) equal(q Peer) bool {
	return p.ID == q.ID && p.Name == q.Name && p.Key == q.Key && p.Relay == q.Relay &&
		slices.Equal(p.Prefixes, q.Prefixes) && slices.Equal(p.Candidates, q.Candidates)
}

// peer is what the mesh knows of another machine. An idle one has no paths. It is the conn.Endpoint of its WireGuard
// peer: which address a packet takes is decided here, not by WireGuard.
type peer struct {
	mesh    *Mesh
	id      string
	key     Key
	sender  senderID
	address relay.Address

	// next is where packets go. Only the send path reads it.
	next atomic.Pointer[route]
	// lastPacket is when a packet was last sent or received, in nanoseconds of the mesh's clock.
	lastPacket atomic.Int64
	// busy says that the prober looks after the peer.
	busy atomic.Bool

	sentBytes, receivedBytes atomic.Uint64
	// handshake is when a key was last agreed on with the peer, in nanoseconds since 1970, and handshakes how often.
	handshake  atomic.Int64
	handshakes atomic.Uint64
	// established is the same as handshake, in nanoseconds of the mesh's clock.
	established atomic.Int64
	// initiated is when we sent an initiation, in nanoseconds of the mesh's clock; 0 once there is a response.
	initiated atomic.Int64

	// instance tells the peer whether we remember our session with it.
	instance [8]byte

	mu     sync.Mutex
	config Peer
	theirs [8]byte // the peer's instance
	// forgotten says that the peer has forgotten our session with it, until a new one begins.
	forgotten bool
	// invited is when the peer last sent an initiation, in nanoseconds of the mesh's clock.
	invited int64
	seal    cipher.AEAD // made when it is first needed
	paths   paths
	// absent are relays that said that the peer is not there, until when they are not asked again.
	absent  map[string]time.Time
	relayed relayedPath
	// held is the newest handshake message that there was no way to send.
	held  []byte
	meter meter
	// fit finds out how large packets may be on the direct path.
	fit mtuSearch
}

func newPeer(m *Mesh, c Peer) *peer {
	p := &peer{mesh: m, id: c.ID, key: c.Key, sender: senderOf(c.Key), address: relay.AddressOf(c.ID), instance: newInstance(), config: c}
	p.next.Store(&route{relay: true})
	return p
}

// sealing returns what seals and opens the probes of this peer. The caller holds mu.
func (p *peer) sealing() (cipher.AEAD, error) {
	if p.seal == nil {
		seal, err := probeSeal(p.mesh.key(), p.config.Key)
		if err != nil {
			return nil, err
		}
		p.seal = seal
	}
	return p.seal, nil
}

// touch notes that a packet was sent or received, and wakes the prober for a peer that was idle.
func (p *peer) touch() {
	p.lastPacket.Store(p.mesh.clock())
	if !p.busy.Load() && p.busy.CompareAndSwap(false, true) {
		p.mesh.prober.add(p)
	}
}

func (p *peer) idleFor() time.Duration {
	return time.Duration(p.mesh.clock() - p.lastPacket.Load())
}

// ClearSrc implements conn.Endpoint.
func (*peer) ClearSrc() {}

// SrcToString implements conn.Endpoint.
func (*peer) SrcToString() string { return "" }

// DstToString implements conn.Endpoint.
func (p *peer) DstToString() string { return p.id }

// DstToBytes implements conn.Endpoint. WireGuard derives cookies from it.
func (p *peer) DstToBytes() []byte { return p.address[:] }

// DstIP implements conn.Endpoint.
func (*peer) DstIP() netip.Addr { return netip.Addr{} }

// SrcIP implements conn.Endpoint.
func (*peer) SrcIP() netip.Addr { return netip.Addr{} }
