// Package oneport serves everything that the cluster offers on one TCP port with TLS 1.3.
//
// The protocols that a client offers in ALPN decide which server answers. A client that offers only h2 is a gRPC
// library and gets grpc-go on the bare connection, which is more than twice as fast as grpc-go behind net/http. A
// client that also offers http/1.1, or nothing, is a browser, curl or the like and gets net/http; if it speaks gRPC
// after all, [Handler] recognizes that by the content type. Protocols between servers have their own names, see
// [Port.Peers].
//
// It guarantees that
// - nothing but a finished handshake reaches a server, so that a client with a certificate is a verified member;
// - only servers of the cluster speak the protocols between servers;
// - a client that stalls in its handshake delays no other client and is cut off when its time is up;
// - a rush of clients is admitted a few at a time, in the order of arrival, so that the first are served while the last
// still wait, instead of all timing out together;
// - unauthenticated clients use no more than [Limits] allow, and do not keep others out;
// - all connections of an identity can be cut at once.
//
// It must not know what is served, nor who may do what.
package oneport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

const (
	defaultHandshakeTimeout = 10 * time.Second
	longestAcceptPause      = time.Second

	// After so many refused connections the port accepts none for a moment. A flood then waits in the kernel, where it
	// costs next to nothing, and all others wait for about a second at most.
	refusedAtOnce = 8
	refusedPause  = time.Millisecond
)

// defaultMaxHandshakes keeps all cores busy. More would finish none of them sooner, but delay other work of this
// process, such as the reports of thousands of nodes while others reconnect.
func defaultMaxHandshakes() int { return 4 * runtime.GOMAXPROCS(0) }

// Options configures a [Port].
type Options struct {
	// Address to listen on, such as 127.0.0.1:7700.
	Address string
	// Trust verifies client certificates.
	Trust *identity.Trust
	// Certificate returns the server's certificate for every handshake.
	Certificate identity.CertificateSource
	Log         *slog.Logger

	// HandshakeTimeout is how long a client may take from the connection to the first request; 10 s by default.
	HandshakeTimeout time.Duration
	// MaxHandshakes is how many handshakes are computed at once; four for each core by default. A handshake that waits
	// for its client does not count.
	MaxHandshakes int
	// Limits are [DefaultLimits] if they are zero.
	Limits Limits

	// Peers are the names, in ALPN, of protocols that only servers of the cluster may speak.
	Peers []string
	// Members are the names of protocols that only nodes and servers of the cluster may speak.
	Members []string
	// Nodes are the names of protocols that only nodes of the cluster may speak.
	Nodes []string
	// Admit may refuse members with a valid certificate in the handshake; nil refuses none. Members that speak gRPC are
	// admitted: a refused call tells them the reason.
	Admit func(identity.ID) error

	// Hold returns a function for the gRPC connection of a member. The port calls it whenever data has arrived, before
	// it reads the data, and the function may wait. Both Hold and the function may be nil.
	Hold func(identity.ID) func()

	// TicketKeys returns the keys of session tickets at a time, newest first; see [identity.CA.TicketKeys]. Without it
	// the port makes its own, which no other server has.
	TicketKeys func(now time.Time) ([][32]byte, error)
}

// Port is one TCP port with several servers behind it.
type Port struct {
	listener net.Listener
	tls      *tls.Config
	trust    *identity.Trust
	grpc     *route // of members
	http     *route
	peers    map[string]*route
	gate     *gate
	timeout  time.Duration
	slots    chan struct{} // one for each handshake that is being computed
	log      *slog.Logger
	// The handshake decides which of the gRPC routes a connection takes.
	grpcServers, grpcStrangers *route
	// wanted is Options.Admit, never nil.
	wanted func(identity.ID) error
	// hold and ticketKeys may be nil.
	hold       func(identity.ID) func()
	ticketKeys func(time.Time) ([][32]byte, error)

	mu     sync.Mutex
	conns  map[*conn]struct{} // all that are open, including those in their handshake
	closed bool
}

// Listen opens the port. Connections are accepted once [Port.Run] runs.
func Listen(ctx context.Context, o Options) (*Port, error) {
	if o.Trust == nil || o.Certificate == nil || o.Log == nil {
		return nil, errors.New("a port needs Trust, Certificate and Log")
	}
	if o.HandshakeTimeout < 0 || o.MaxHandshakes < 0 {
		return nil, errors.New("HandshakeTimeout and MaxHandshakes of a port cannot be negative")
	}
	config := net.ListenConfig{KeepAlive: -1} // see conn.keepAlive
	listener, err := config.Listen(ctx, "tcp", o.Address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("address %s is used by another process: stop that one, or listen on another with --api-addr", o.Address)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", o.Address, err)
	}
	p := newPort(listener, o)
	if err := setTicketKeys(p.tls, o.TicketKeys); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func newPort(listener net.Listener, o Options) *Port {
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = defaultHandshakeTimeout
	}
	if o.MaxHandshakes == 0 {
		o.MaxHandshakes = defaultMaxHandshakes()
	}
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	if o.Admit == nil {
		o.Admit = func(identity.ID) error { return nil }
	}
	config := identity.ServerTLS(o.Trust, o.Certificate)
	strict := admitting(config.Clone(), o.Admit)
	p := &Port{
		listener: listener,
		tls:      config,
		trust:    o.Trust,
		grpc:     newRoute(listener.Addr(), config, "h2"),
		http:     newRoute(listener.Addr(), strict, "h2", "http/1.1"),
		gate:     newGate(o.Limits, o.HandshakeTimeout),
		peers:    newPeerRoutes(listener.Addr(), strict, o),
		timeout:  o.HandshakeTimeout,
		slots:    make(chan struct{}, o.MaxHandshakes),
		log:      o.Log,
		conns:    make(map[*conn]struct{}),

		grpcServers:   newRoute(listener.Addr(), config, "h2"),
		grpcStrangers: newRoute(listener.Addr(), config, "h2"),

		wanted:     o.Admit,
		hold:       o.Hold,
		ticketKeys: o.TicketKeys,
	}
	config.GetConfigForClient = p.admit
	return p
}

// Addr is the address that the port listens on.
func (p *Port) Addr() net.Addr { return p.listener.Addr() }

// GRPC returns the connections of gRPC clients with a certificate, for a grpc.Server with [Port.GRPCCredentials].
func (p *Port) GRPC() net.Listener { return p.grpc }

// GRPCServers returns those of other servers.
func (p *Port) GRPCServers() net.Listener { return p.grpcServers }

// GRPCStrangers returns those without a certificate, for a grpc.Server that has [Port.GRPCStats], too.
func (p *Port) GRPCStrangers() net.Listener { return p.grpcStrangers }

// HTTP returns the connections of all other clients as *tls.Conn, for an http.Server without its own TLSConfig, which
// then speaks HTTP/2 or HTTP/1.1 as agreed in the handshake.
func (p *Port) HTTP() net.Listener { return p.http }

// Run accepts connections until the context ends or the port is closed, and then returns nil. After that there is no
// new connection and no unfinished handshake. Established connections belong to the servers that accepted them, which
// can end them gracefully, until [Port.Close].
func (p *Port) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var pending sync.WaitGroup
	pending.Go(func() {
		<-ctx.Done()
		_ = p.listener.Close()
	})
	if p.ticketKeys != nil {
		pending.Go(func() { p.renewTicketKeys(ctx) })
	}
	p.gate.start = func(c *conn) { pending.Go(func() { p.handshake(ctx, c) }) }
	defer func() {
		cancel()
		p.gate.close()
		p.closeRoutes()
		pending.Wait()
	}()
	for refused := 0; ; {
		raw, err := p.accept(ctx)
		if errors.Is(err, net.ErrClosed) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept connections on %s: %w", p.Addr(), err)
		}
		if c := p.track(raw); c != nil && p.gate.arrive(c) {
			if refused++; refused%refusedAtOnce == 0 {
				time.Sleep(refusedPause)
			}
		}
	}
}

// accept takes the next connection. It waits out a shortage, of file descriptors for example: connections that end will
// end it, whereas an error would end the whole port.
func (p *Port) accept(ctx context.Context) (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, longestAcceptPause) {
		raw, err := p.listener.Accept()
		if err == nil || !isShortage(err) {
			return raw, err
		}
		p.log.WarnContext(ctx, "connection not accepted", "error", err, "retry", pause)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func isShortage(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains([]syscall.Errno{
		syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED,
	}, errno)
}

// handshake brings a connection to the server that its client asks for, before its time ends.
func (p *Port) handshake(ctx context.Context, c *conn) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	c.keepAlive()
	secure := tls.Server(c, p.tls)
	err := secure.HandshakeContext(ctx)
	c.leave()
	if err == nil {
		err = p.identify(c, secure.ConnectionState())
	}
	if err == nil {
		err = c.route.deliver(ctx, secure)
	}
	if err != nil {
		p.log.DebugContext(ctx, "connection refused", "peer", c.RemoteAddr(), "error", err)
		_ = c.Close()
	}
}

// admit is called when the hello of a client has arrived: it checks which protocols the client speaks, and waits for
// its turn before the expensive part of the handshake begins.
func (p *Port) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	c, ok := hello.Conn.(*conn)
	if !ok {
		return nil, fmt.Errorf("connection of type %T was not accepted by this port", hello.Conn)
	}
	c.route = p.http
	if slices.Contains(hello.SupportedProtos, "h2") && !slices.Contains(hello.SupportedProtos, "http/1.1") {
		c.route = p.grpc
	}
	if peers := p.peerRoute(hello.SupportedProtos); peers != nil {
		c.route = peers
	}
	if err := c.enter(hello.Context()); err != nil {
		return nil, err
	}
	return c.route.accepting(p.trust), nil
}

// Pressed reports whether unauthenticated clients keep coming.
func (p *Port) Pressed() bool { return p.gate.pressed() }

// CloseIdentity cuts all connections of a member at once, and returns how many. To lock a member out, first make sure
// that its calls are refused, then call this: a connection that is established meanwhile can do nothing.
func (p *Port) CloseIdentity(id identity.ID) int {
	return p.cut(func(c *conn) bool { return !id.IsZero() && c.id == id })
}

// CloseMembers cuts all connections of the members that match, and returns how many.
func (p *Port) CloseMembers(meant func(identity.ID) bool) int {
	return p.cut(func(c *conn) bool { return !c.id.IsZero() && meant(c.id) })
}

// CloseUntrusted cuts all connections of members whose certificate is from an authority that is not trusted any more,
// and returns how many.
func (p *Port) CloseUntrusted() int {
	return p.cut(func(c *conn) bool { return !c.id.IsZero() && !p.trust.Has(c.issuer) })
}

// RenewTickets seals session tickets with the current keys from now on, and opens no others.
func (p *Port) RenewTickets() error { return setTicketKeys(p.tls, p.ticketKeys) }

// Close ends the port and cuts every connection. It may be called more than once.
func (p *Port) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	p.closeRoutes()
	p.cut(func(*conn) bool { return true })
	return err
}

// cut closes connections below TLS: a graceful close could wait for a peer that does not read.
func (p *Port) cut(which func(*conn) bool) int {
	p.mu.Lock()
	var doomed []*conn
	for c := range p.conns {
		if which(c) {
			doomed = append(doomed, c)
		}
	}
	p.mu.Unlock()
	for _, c := range doomed {
		_ = c.Close()
	}
	return len(doomed)
}
