package mesh

import (
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

	// relayed are packets that came through relays.
	relayed chan relayedPacket
}

// relayedPacket is a copy of a packet, in a buffer of the pool.
type relayedPacket struct {
	from   *peer
	buffer *[]byte
}

// relayedWaiting is how many packets may wait for WireGuard. A relay that is faster loses some.
const relayedWaiting = 1024

var packetBuffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 2048)
	return &b
}}

func newBind(m *Mesh) *bind {
	return &bind{mesh: m, relayed: make(chan relayedPacket, relayedWaiting)}
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
		return nil // WireGuard tries again
	}
	for _, one := range buffers {
		p.count(&p.sentBytes, one[offset:])
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
	}
}

// hold keeps a handshake message until there is a way to send it: WireGuard itself waits five seconds.
func (p *peer) hold(buffers [][]byte, offset int) {
	for _, one := range buffers {
		if message := one[offset:]; len(message) > 0 && message[0] == handshakeInitiation {
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
	return func(buffers [][]byte, sizes []int, endpoints []conn.Endpoint) (n int, err error) {
		take := func(r relayedPacket) {
			sizes[n], endpoints[n] = copy(buffers[n], *r.buffer), r.from
			packetBuffers.Put(r.buffer)
			n++
		}
		select {
		case <-closed:
			return 0, net.ErrClosed
		case r := <-b.relayed:
			take(r)
		}
		for n < len(buffers) {
			select {
			case r := <-b.relayed:
				take(r)
			default:
				return n, nil
			}
		}
		return n, nil
	}
}

// fromRelay is called for every packet that a relay passes on. It must not keep the packet.
func (b *bind) fromRelay(from relay.Address, packet []byte) {
	p := b.mesh.peerAt(from)
	if p == nil {
		return
	}
	p.touch()
	if !isWireGuard(packet) {
		b.mesh.probedByRelay(p, packet)
		return
	}
	p.count(&p.receivedBytes, packet)
	buffer := packetBuffers.Get().(*[]byte)
	*buffer = append((*buffer)[:0], packet...)
	select {
	case b.relayed <- relayedPacket{p, buffer}:
	default:
		packetBuffers.Put(buffer)
	}
}
