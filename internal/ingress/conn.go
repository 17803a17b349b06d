package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/ingress/proxyproto"
	"github.com/cloudless/cloudless/internal/ingress/table"
)

// client is a connection of a client.
type client struct {
	net.Conn
	e       *Engine
	r       *bufio.Reader // what came behind a header of the PROXY protocol; nil if there was none
	peer    netip.AddrPort
	from    netip.AddrPort // the client itself
	to      netip.AddrPort // that it has connected to
	trusted bool
	busy    atomic.Bool // it has a request, or is another protocol's
	ourPort int
	once    sync.Once
	closed  chan struct{}
}

// Read reads what was read ahead first.
func (c *client) Read(p []byte) (int, error) {
	if c.r != nil {
		if c.r.Buffered() > 0 {
			return c.r.Read(p)
		}
		c.r = nil
	}
	return c.Conn.Read(p)
}

// Close closes the connection and gives its place to another.
func (c *client) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.e.limits.leave(c)
		close(c.closed)
	})
	return err
}

// CloseWrite says that nothing more will come.
func (c *client) CloseWrite() error { return closeWrite(c.Conn) }

const (
	// headTime is how long the head of a request may take, and quickHeadTime if there are many connections.
	headTime, quickHeadTime = 10 * time.Second, 2 * time.Second
	// keepAlive is how long a connection may wait for the next request.
	keepAlive = 75 * time.Second
	// proxyTime is how long a trusted balancer may take to say who the client is. Where it says nothing the backend may be
	// the one that speaks first.
	proxyTime = time.Second
)

// accept takes a connection that was made to a port, and returns when it has ended.
func (e *Engine) accept(p port, conn net.Conn) {
	s := e.current.Load()
	peer := addressOf(conn.RemoteAddr())
	trusted := within(s.trusted, peer.Addr())
	c := &client{Conn: conn, e: e, peer: peer, from: peer, to: addressOf(conn.LocalAddr()), trusted: trusted, ourPort: p.number, closed: make(chan struct{})}
	if !e.limits.enter(c) {
		_ = conn.Close()
		return
	}
	defer func() { _ = c.Close() }()
	defer e.survive(peer)
	if trusted && !c.introduce() {
		return
	}
	switch r := s.byPort[p]; {
	case r != nil:
		e.serveTCP(c, p, r)
	case p.number == s.httpsPort:
		e.serveTLS(c)
	default:
		e.serveHTTP1(c, c, false, "")
	}
}

// survive keeps a mistake of ours that one client has found from ending the connections of all others.
func (e *Engine) survive(peer netip.AddrPort) {
	if mistake := recover(); mistake != nil {
		e.opts.Logger.Error("a connection ends by a panic", "client", peer, "panic", mistake, "stack", string(debug.Stack()))
	}
}

// introduce reads a header of the PROXY protocol if there is one. It reports whether the connection is usable.
func (c *client) introduce() bool {
	r := bufio.NewReaderSize(c.Conn, 512)
	_ = c.SetReadDeadline(time.Now().Add(proxyTime)) // if it is closed, reading reports it
	from, to, err := proxyproto.Read(r)
	_ = c.SetReadDeadline(time.Time{})
	if err != nil && !isTimeout(err) {
		return false
	}
	if from.IsValid() {
		// The address of the client counts as the peer's from now on.
		c.peer, c.from, c.to = from, from, to
		c.trusted = within(c.e.current.Load().trusted, from.Addr())
	}
	if r.Buffered() > 0 {
		c.r = r
	}
	return true
}

// serveTLS agrees on keys and a protocol with a client.
func (e *Engine) serveTLS(c *client) {
	conn, state, ok := e.handshake(c, e.ports.hosts)
	if !ok {
		return
	}
	switch state.NegotiatedProtocol {
	case acmeProtocol: // the certificate was the answer
		_ = conn.Close()
	case "h2":
		e.http2.serve(conn, c)
	default:
		e.serveHTTP1(c, conn, true, table.Host(state.ServerName))
	}
}

func (e *Engine) handshake(c *client, config *tls.Config) (*tls.Conn, tls.ConnectionState, bool) {
	conn := tls.Server(c, config)
	ctx, cancel := context.WithTimeout(e.ctx, handshakeTime)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, tls.ConnectionState{}, false
	}
	return conn, conn.ConnectionState(), true
}

func addressOf(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		p := tcp.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap().WithZone(""), p.Port())
	}
	return netip.AddrPort{}
}
