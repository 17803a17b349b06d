package oneport

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

// conn is a connection of the port, below TLS, because net/http wants the *tls.Conn itself on top.
type conn struct {
	net.Conn
	port *Port

	// Of the peer, once known; guarded by port.mu.
	id     identity.ID
	issuer identity.Fingerprint

	// These belong to the goroutine of the handshake and do not change after it.
	route   *route
	working bool   // holds one of port.slots
	hold    func() // may delay incoming data; nil never does

	// These are guarded by port.gate.mu.
	stage   stage
	since   time.Time // start of the stage
	source  *source
	element *list.Element // in the gate's list for the stage
	timer   *time.Timer   // ends a stranger's time
	calls   int           // in progress, of a stranger

	heard   atomic.Bool  // whether the client has sent anything
	limited atomic.Bool  // whether no caller has authenticated on it
	budget  atomic.Int64 // bytes that a stranger may still send
	refused atomic.Int64 // calls of a stranger without authentication
}

// track registers a connection with the port, or closes it if the port is closed.
func (p *Port) track(raw net.Conn) *conn {
	c := &conn{Conn: raw, port: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = raw.Close()
		return nil
	}
	p.conns[c] = struct{}{}
	return c
}

// identify records the peer of a connection. From then on it can be cut. If the member was cut off just before, it is
// refused now.
func (p *Port) identify(c *conn, state tls.ConnectionState) error {
	id, known := identity.PeerID(state)
	// The program of a replica has a certificate as well, and is a stranger nevertheless.
	member := known && (id.Kind() == identity.KindNode || id.Kind() == identity.KindServer)
	p.mu.Lock()
	c.id = id
	if member {
		c.issuer = identity.PeerIssuer(state)
	}
	p.mu.Unlock()
	if !p.gate.finished(c, member) {
		return net.ErrClosed
	}
	if c.route != p.grpc {
		if member {
			return p.wanted(id)
		}
		return nil
	}
	if member && p.hold != nil {
		c.hold = p.hold(id)
	}
	switch {
	case !member:
		c.route = p.grpcStrangers
	case id.Kind() == identity.KindServer:
		c.route = p.grpcServers
	}
	return nil
}

// enter waits for one of the port's slots.
func (c *conn) enter(ctx context.Context) error {
	select {
	case c.port.slots <- struct{}{}:
		c.working = true
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the handshakes before this one: %w", ctx.Err())
	}
}

// leave gives the slot back, if there is one.
func (c *conn) leave() {
	if c.working {
		c.working = false
		<-c.port.slots
	}
}

// Read gives the slot back first: from here on the handshake waits for its client, which may never answer.
func (c *conn) Read(b []byte) (int, error) {
	c.leave()
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Load() {
		c.heard.Store(true)
	}
	if c.limited.Load() && c.budget.Add(-int64(n)) < 0 {
		_ = c.Close()
		return 0, errTooMuch
	}
	if c.hold != nil && n > 0 {
		c.hold()
	}
	return n, err
}

var errTooMuch = errors.New("too much was sent before the caller authenticated")

// Close removes the connection from the port. It may be called more than once.
func (c *conn) Close() error {
	c.port.mu.Lock()
	delete(c.port.conns, c)
	c.port.mu.Unlock()
	err := c.Conn.Close()
	c.port.gate.leave(c)
	return err
}

// abort resets the connection. The kernel forgets it at once, but remembers a gracefully closed one for a minute: a
// flood of connections would fill its memory.
func (c *conn) abort() {
	if raw, ok := c.Conn.(*net.TCPConn); ok {
		_ = raw.SetLinger(0)
	}
	_ = c.Close()
}

// keepAlive lets the kernel detect that the other machine is gone. Refused connections do without.
func (c *conn) keepAlive() {
	if raw, ok := c.Conn.(*net.TCPConn); ok {
		_ = raw.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true})
	}
}

// route leads to one of the servers behind the port; for that server it is a net.Listener.
type route struct {
	addr net.Addr
	tls  *tls.Config
	// accepted is tls with the authorities that are trusted now.
	accepted atomic.Pointer[tls.Config]
	next     chan net.Conn

	closing sync.Once
	closed  chan struct{}
}

func newRoute(addr net.Addr, base *tls.Config, protocols ...string) *route {
	config := base.Clone()
	config.NextProtos = protocols
	return &route{addr: addr, tls: config, next: make(chan net.Conn), closed: make(chan struct{})}
}

// accepting returns the route's configuration, which verifies clients by the authorities that are trusted now.
func (r *route) accepting(trust *identity.Trust) *tls.Config {
	last := r.accepted.Load()
	if last == nil {
		last = r.tls
	}
	now := identity.Accepting(trust, last)
	if now != last {
		r.accepted.Store(now)
	}
	return now
}

// deliver passes a connection to the server that accepts from the route.
func (r *route) deliver(ctx context.Context, c net.Conn) error {
	select {
	case r.next <- c:
		return nil
	case <-r.closed:
		return net.ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("wait for the server to take the connection: %w", ctx.Err())
	}
}

// Accept returns the next connection, its handshake done.
func (r *route) Accept() (net.Conn, error) {
	select {
	case c := <-r.next:
		return c, nil
	case <-r.closed:
		return nil, net.ErrClosed
	}
}

// Close makes Accept return net.ErrClosed. It closes this route, not the port.
func (r *route) Close() error {
	r.closing.Do(func() { close(r.closed) })
	return nil
}

// Addr is the address of the port.
func (r *route) Addr() net.Addr { return r.addr }
