package gossip

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// A connection begins with one byte that says what it is for: one exchange, or packets, each with its length in two
// bytes before it, until it is closed.
const (
	forStream  = 's'
	forPackets = 'p'

	maxPacket   = 1<<16 - 1
	queueLength = 128
	dialTimeout = time.Second
	// idle is after how long both sides close an idle connection for packets.
	idle = time.Minute
)

// transport is memberlist's transport over a Network.
type transport struct {
	network Network
	at      *net.TCPAddr
	log     *slog.Logger
	peers   atomic.Pointer[serf.Serf] // what servers say of themselves; nil at first

	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	work    sync.WaitGroup

	mu     sync.Mutex
	closed bool
	queues map[memberlist.Address]chan []byte
	open   map[net.Conn]string // by connection: the server dialled, empty if accepted
}

var _ memberlist.NodeAwareTransport = (*transport)(nil)

func newTransport(network Network, at *net.TCPAddr, log *slog.Logger) *transport {
	t := &transport{
		network: network, at: at, log: log,
		packets: make(chan *memberlist.Packet, queueLength), streams: make(chan net.Conn), done: make(chan struct{}),
		queues: map[memberlist.Address]chan []byte{}, open: map[net.Conn]string{},
	}
	t.work.Go(t.accept)
	return t
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.at.IP, t.at.Port, nil
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// track registers a connection until it is closed; false if the transport is shut down.
func (t *transport) track(conn net.Conn, to string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = conn.Close()
		return false
	}
	t.open[conn] = to
	return true
}

func (t *transport) release(conn net.Conn) {
	t.mu.Lock()
	delete(t.open, conn)
	t.mu.Unlock()
	_ = conn.Close()
}

func (t *transport) accept() {
	for {
		conn, err := t.network.Accept()
		if err != nil {
			return
		}
		if t.track(conn, "") {
			t.work.Go(func() { t.receive(conn) })
		}
	}
}

// receive handles an accepted connection.
func (t *transport) receive(conn net.Conn) {
	var purpose [1]byte
	_ = conn.SetDeadline(time.Now().Add(idle))
	if _, err := io.ReadFull(conn, purpose[:]); err != nil {
		t.release(conn)
		return
	}
	switch purpose[0] {
	case forStream:
		_ = conn.SetDeadline(time.Time{})
		select {
		case t.streams <- &streamConn{Conn: conn, transport: t}: // memberlist closes it
		case <-t.done:
			t.release(conn)
		}
	case forPackets:
		err := t.receivePackets(conn)
		t.log.Debug("gossip of a server ended", "peer", conn.RemoteAddr(), "error", err)
		t.release(conn)
	default:
		t.release(conn)
	}
}

func (t *transport) receivePackets(conn net.Conn) error {
	from := bufio.NewReader(conn)
	for {
		_ = conn.SetReadDeadline(time.Now().Add(idle))
		var size [2]byte
		if _, err := io.ReadFull(from, size[:]); err != nil {
			return err
		}
		data := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(from, data); err != nil {
			return err
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: data, From: conn.RemoteAddr(), Timestamp: time.Now()}:
		case <-t.done:
			return net.ErrClosed
		}
	}
}

// streamConn is forgotten when it is closed.
type streamConn struct {
	net.Conn
	transport *transport
}

func (c *streamConn) Close() error {
	c.transport.release(c.Conn)
	return nil
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	conn, err := t.dial(to, timeout, forStream)
	if err != nil {
		return nil, err
	}
	return &streamConn{Conn: conn, transport: t}, nil
}

// dialAddress is a server's address to dial: its name if it has one, resolved here.
func (t *transport) dialAddress(to memberlist.Address) string {
	known := t.peers.Load()
	if known == nil || to.Name == "" {
		return to.Addr
	}
	for _, m := range known.Members() {
		if m.Name != to.Name {
			continue
		}
		host, _, _ := net.SplitHostPort(m.Tags[tagAddress])
		if named(host) != "" {
			return m.Tags[tagAddress]
		}
	}
	return to.Addr
}

func (t *transport) dial(to memberlist.Address, timeout time.Duration, purpose byte) (net.Conn, error) {
	conn, err := t.network.Dial(to.Name, t.dialAddress(to), timeout)
	if err != nil {
		return nil, err
	}
	if !t.track(conn, to.Name) {
		return nil, net.ErrClosed
	}
	_ = conn.SetWriteDeadline(time.Now().Add(timeout))
	if _, err := conn.Write([]byte{purpose}); err != nil {
		t.release(conn)
		return nil, fmt.Errorf("begin to gossip with %s: %w", to.Addr, err)
	}
	_ = conn.SetWriteDeadline(time.Time{})
	return conn, nil
}

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress sends a packet as if it were UDP: it does not block, and the packet may get lost.
func (t *transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	if len(b) > maxPacket {
		return time.Time{}, fmt.Errorf("a packet of %d bytes is too long to gossip", len(b))
	}
	packet := binary.BigEndian.AppendUint16(make([]byte, 0, len(b)+2), uint16(len(b)))
	packet = append(packet, b...)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return time.Time{}, net.ErrClosed
	}
	queue := t.queues[to]
	if queue == nil {
		queue = make(chan []byte, queueLength)
		t.queues[to] = queue
		t.work.Go(func() { t.send(to, queue) })
	}
	select {
	case queue <- packet:
	default: // lost
	}
	return time.Now(), nil
}

// send writes the queue of one server until it has been empty for a while.
func (t *transport) send(to memberlist.Address, queue chan []byte) {
	var conn net.Conn
	defer func() {
		if conn != nil {
			t.release(conn)
		}
	}()
	rest := time.NewTimer(idle)
	defer rest.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-rest.C:
			if t.retire(to, queue) {
				return
			}
		case packet := <-queue:
			conn = t.write(to, conn, packet)
		}
		rest.Reset(idle / 2)
	}
}

// write sends one packet and returns the connection for the next one, nil if there is none.
func (t *transport) write(to memberlist.Address, conn net.Conn, packet []byte) net.Conn {
	var err error
	if conn == nil {
		if conn, err = t.dial(to, dialTimeout, forPackets); err != nil {
			return nil
		}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(dialTimeout))
	if _, err = conn.Write(packet); err != nil {
		t.release(conn)
		return nil
	}
	return conn
}

// retire closes an empty queue.
func (t *transport) retire(to memberlist.Address, queue chan []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(queue) > 0 {
		return false
	}
	delete(t.queues, to)
	return true
}

// cut closes the connections that lead to a server.
func (t *transport) cut(server string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for conn, to := range t.open {
		if to == server {
			_ = conn.Close()
		}
	}
}

// Shutdown implements memberlist.Transport. It may be called more than once.
func (t *transport) Shutdown() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil
	}
	t.closed = true
	close(t.done)
	for conn := range t.open {
		_ = conn.Close()
	}
	t.mu.Unlock()
	err := t.network.Close()
	t.work.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
