package mesh

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailscale/wireguard-go/conn"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// bind carries WireGuard's packets: by a direct path, through a relay, or both. It implements conn.Bind.
type bind struct {
	mesh *Mesh

	mu     sync.Mutex
	v4, v6 *socket
	closed chan struct{} // closed with the sockets

	// relayed are packets that came through relays, together as they arrived.
	relayed chan *relayedPackets
}

// relayedPackets are copies of packets that arrived together, one after the other.
type relayedPackets struct {
	data  []byte
	sizes []int
	from  []*peer
	// moved packets were given to WireGuard already, and read bytes of data with them.
	moved, read int
}

// relayedWaiting is how many groups of packets may wait for WireGuard. A relay that is faster loses some.
const relayedWaiting = 64

var relayedPool = sync.Pool{New: func() any { return &relayedPackets{} }}

func newRelayedPackets() *relayedPackets { return relayedPool.Get().(*relayedPackets) }

func (r *relayedPackets) add(from *peer, packet []byte) {
	r.data, r.sizes, r.from = append(r.data, packet...), append(r.sizes, len(packet)), append(r.from, from)
}

// moveTo copies as many packets as there are buffers, and reports whether it was all of them.
func (r *relayedPackets) moveTo(buffers [][]byte, sizes []int, endpoints []conn.Endpoint) (n int, all bool) {
	for n < len(buffers) && r.moved < len(r.sizes) {
		end := r.read + r.sizes[r.moved]
		sizes[n], endpoints[n] = copy(buffers[n], r.data[r.read:end]), r.from[r.moved]
		r.read = end
		r.moved++
		n++
	}
	return n, r.moved == len(r.sizes)
}

func (r *relayedPackets) release() {
	clear(r.from) // so that removed peers are not kept
	*r = relayedPackets{data: r.data[:0], sizes: r.sizes[:0], from: r.from[:0]}
	relayedPool.Put(r)
}

func newBind(m *Mesh) *bind {
	return &bind{mesh: m, relayed: make(chan *relayedPackets, relayedWaiting)}
}

// Open implements conn.Bind.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	v4, v6, actual, err := openSockets(port)
	if err != nil {
		return nil, 0, err
	}
	b.v4, b.v6, b.closed = v4, v6, make(chan struct{})
	functions := []conn.ReceiveFunc{b.receiveRelayed(b.closed)}
	for _, s := range []*socket{v4, v6} {
		if s != nil {
			functions = append(functions, b.receiveDirect(s))
		}
	}
	b.mesh.port.Store(uint32(actual))
	return functions, actual, nil
}

// Close implements conn.Bind.
func (b *bind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed == nil {
		return nil
	}
	close(b.closed)
	var errs []error
	for _, s := range []*socket{b.v4, b.v6} {
		if s != nil {
			errs = append(errs, s.conn.Close())
		}
	}
	b.v4, b.v6, b.closed = nil, nil, nil
	return errors.Join(errs...)
}

// SetMark implements conn.Bind.
func (*bind) SetMark(uint32) error { return nil }

// BatchSize implements conn.Bind.
func (*bind) BatchSize() int { return conn.IdealBatchSize }

// ParseEndpoint implements conn.Bind. Endpoints are peers, which only the mesh makes.
func (*bind) ParseEndpoint(string) (conn.Endpoint, error) { return nil, conn.ErrWrongEndpointType }

// socketFor is the socket of an address's family, nil if there is none.
func (b *bind) socketFor(a netip.Addr) *socket {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.Is4() {
		return b.v4
	}
	return b.v6
}

// Send implements conn.Bind.
func (b *bind) Send(buffers [][]byte, to conn.Endpoint, offset int) error {
	p, ok := to.(*peer)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	p.touch()
	next := p.next.Load()
	sent := false
	if next.direct.IsValid() {
		if s := b.socketFor(next.direct.Addr()); s != nil {
			sent = s.send(buffers, offset, next.direct) == nil
		}
	}
	if next.relay || !sent {
		sent = b.mesh.relays.send(p, buffers, offset) || sent
	}
	if !sent {
		p.hold(buffers, offset)
		if *p.next.Load() != *next { // a path was found meanwhile, and nothing was held yet
			p.release()
		}
		return nil // WireGuard tries again
	}
	for _, one := range buffers {
		p.count(&p.sentBytes, one[offset:])
		if one[offset] == handshakeInitiation {
			p.initiated.Store(p.mesh.clock())
		}
	}
	return nil
}

// The first bytes of the messages that begin a WireGuard session.
const (
	handshakeInitiation = 1
	handshakeResponse   = 2
)

// count counts a packet of WireGuard. Only an authentic initiation is answered by a response.
func (p *peer) count(bytes *atomic.Uint64, packet []byte) {
	bytes.Add(uint64(len(packet)))
	if len(packet) > 0 && packet[0] == handshakeResponse {
		p.handshake.Store(time.Now().UnixNano())
		p.established.Store(p.mesh.clock())
		p.handshakes.Add(1)
		p.initiated.Store(0)
	}
}

// crossingTime is how long an initiation may take to the peer.
const crossingTime = 500 * time.Millisecond

// crosses reports whether a packet is an initiation that crosses one of ours. WireGuard would begin two sessions, finish
// neither, and try again after five seconds. So the initiation of the smaller key counts, and its node ignores the other.
func (p *peer) crosses(packet []byte) bool {
	if packet[0] != handshakeInitiation {
		return false
	}
	p.mu.Lock()
	p.invited = p.mesh.clock()
	sent := p.initiated.Load()
	p.mu.Unlock()
	if sent == 0 || p.mesh.clock()-sent > int64(crossingTime) {
		return false
	}
	mine := p.mesh.key().Public()
	return bytes.Compare(mine[:], p.key[:]) < 0
}

// hold keeps a handshake message until there is a way to send it: WireGuard itself waits five seconds.
func (p *peer) hold(buffers [][]byte, offset int) {
	for _, one := range buffers {
		if message := one[offset:]; len(message) > 0 && (message[0] == handshakeInitiation || message[0] == handshakeResponse) {
			p.mu.Lock()
			p.held = append(p.held[:0], message...)
			p.mu.Unlock()
		}
	}
}

// release sends what was held.
func (p *peer) release() {
	p.mu.Lock()
	held := p.held
	p.held = nil
	p.mu.Unlock()
	if held != nil {
		_ = p.mesh.bind.Send([][]byte{held}, p, 0) // Send fails only for foreign endpoints
	}
}

// receiveDirect receives from a socket. WireGuard sees only its own packets, and only from addresses from which a peer has
// sent an authentic probe.
func (b *bind) receiveDirect(s *socket) conn.ReceiveFunc {
	r := newReceiver(s)
	from := make([]netip.AddrPort, conn.IdealBatchSize)
	return func(buffers [][]byte, sizes []int, endpoints []conn.Endpoint) (int, error) {
		n, err := r.receive(buffers, sizes, from)
		if err != nil {
			return 0, err
		}
		sources := *b.mesh.sources.Load()
		var last *peer
		for i := range n {
			datagram := buffers[i][:sizes[i]]
			p := sources[from[i]]
			if p == nil || !isWireGuard(datagram) {
				sizes[i] = 0
				b.mesh.control(datagram, from[i])
				sources = *b.mesh.sources.Load() // a probe may let in what follows
				continue
			}
			if p.crosses(datagram) {
				sizes[i] = 0
				continue
			}
			p.count(&p.receivedBytes, datagram)
			if p != last { // once for a group
				p.touch()
				last = p
			}
			endpoints[i] = p
		}
		return n, nil
	}
}

// isWireGuard reports whether a datagram begins like one of WireGuard's four messages.
func isWireGuard(d []byte) bool {
	return len(d) >= 4 && d[0] >= 1 && d[0] <= 4 && d[1] == 0 && d[2] == 0 && d[3] == 0
}

// receiveRelayed receives what relays pass on.
func (b *bind) receiveRelayed(closed <-chan struct{}) conn.ReceiveFunc {
	var left *relayedPackets // of what was taken from the channel
	return func(buffers [][]byte, sizes []int, endpoints []conn.Endpoint) (n int, err error) {
		if left == nil {
			select {
			case <-closed:
				return 0, net.ErrClosed
			case left = <-b.relayed:
			}
		}
		for {
			moved, all := left.moveTo(buffers[n:], sizes[n:], endpoints[n:])
			n += moved
			if !all {
				return n, nil
			}
			left.release()
			select {
			case left = <-b.relayed:
			default:
				left = nil
				return n, nil
			}
		}
	}
}

// fromRelay is called for every packet that a relay passes on. It adds WireGuard's packets to those that go to WireGuard
// together.
func (b *bind) fromRelay(from relay.Address, packet []byte, together *relayedPackets) {
	p := b.mesh.peerAt(from)
	if p == nil {
		return
	}
	p.touch()
	if !isWireGuard(packet) {
		b.mesh.probedByRelay(p, packet)
		return
	}
	if p.crosses(packet) {
		return
	}
	p.count(&p.receivedBytes, packet)
	together.add(p, packet)
}

// deliver gives packets to WireGuard, or drops them if it is too slow.
func (b *bind) deliver(together *relayedPackets) {
	select {
	case b.relayed <- together:
	default:
		together.release()
	}
}
