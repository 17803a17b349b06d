package chunks

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/object/transfer"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	handshakeTimeout = 10 * time.Second
	// Attempts to connect wait for about minBackoff first, and then for twice as long each time, up to maxBackoff.
	minBackoff = 500 * time.Millisecond
	maxBackoff = 30 * time.Second
	// settled is how long a connection must have lasted for the next attempt to follow soon: a server that refuses this
	// node says so after the handshake.
	settled = 5 * time.Second
)

// links are the connections to the servers. For the gRPC server of this node they are a net.Listener.
type links struct {
	servers func() ([]string, <-chan struct{})
	dial    func(context.Context, string) (net.Conn, error)
	config  *tls.Config
	log     *slog.Logger

	next   chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu sync.Mutex
	// connected has a channel for each server, which is closed when its connection ends. A server may have several
	// addresses, and gets one connection.
	connected map[string]chan struct{}
}

func newLinks(o Options) *links {
	config := identity.ClientTLS(o.Trust, o.Certificate)
	config.NextProtos = []string{transfer.Protocol}
	return &links{
		servers: o.Servers, dial: o.Dial, config: config, log: o.Logger,
		next: make(chan net.Conn), closed: make(chan struct{}), connected: map[string]chan struct{}{},
	}
}

// run keeps a connection to every server until ctx ends.
func (l *links) run(ctx context.Context) {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	kept := map[string]context.CancelFunc{}
	defer func() {
		for _, stop := range kept {
			stop()
		}
	}()
	for {
		addresses, changed := l.servers()
		wanted := map[string]bool{}
		for _, address := range addresses {
			wanted[address] = true
			if kept[address] == nil {
				keeping, stop := context.WithCancel(ctx)
				kept[address] = stop
				tasks.Go(func() { l.keep(keeping, address) })
			}
		}
		for address, stop := range kept {
			if !wanted[address] {
				stop()
				delete(kept, address)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// keep connects to an address again and again until ctx ends.
func (l *links) keep(ctx context.Context, address string) {
	server, backoff := "", minBackoff
	for ctx.Err() == nil {
		if !l.awaitFree(ctx, server) {
			return
		}
		began := time.Now()
		var err error
		server, err = l.connect(ctx, address)
		if time.Since(began) > settled {
			backoff = minBackoff
		}
		if ctx.Err() == nil {
			l.log.DebugContext(ctx, "no connection for chunks to a server", "address", address, "error", err)
		}
		_ = sleep.For(ctx, backoff/2+rand.N(backoff))
		backoff = min(2*backoff, maxBackoff)
	}
}

// awaitFree waits until a server has no connection, if it has one by another of its addresses. It returns false when ctx
// has ended.
func (l *links) awaitFree(ctx context.Context, server string) bool {
	l.mu.Lock()
	busy := l.connected[server]
	l.mu.Unlock()
	if busy == nil {
		return true
	}
	select {
	case <-busy:
		return true
	case <-ctx.Done():
		return false
	}
}

var errElsewhere = errors.New("the server is connected by another address")

// connect has the server at an address use this node until the connection or ctx ends. It returns which server that is.
func (l *links) connect(ctx context.Context, address string) (server string, err error) {
	dialing, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := l.dial(dialing, address)
	if err != nil {
		return "", err
	}
	conn := &served{Conn: tls.Client(raw, l.config), done: make(chan struct{})}
	defer func() { _ = conn.Close() }()
	if server, err = conn.shake(dialing); err != nil {
		return server, err
	}
	leave, ok := l.enter(server)
	if !ok {
		return server, errElsewhere
	}
	defer leave()
	select {
	case l.next <- conn:
	case <-ctx.Done():
		return server, ctx.Err()
	case <-l.closed:
		return server, net.ErrClosed
	}
	select {
	case <-conn.done:
		return server, errors.New("the connection has ended")
	case <-ctx.Done():
		return server, ctx.Err()
	}
}

// enter makes a connection the one of its server, unless it has one.
func (l *links) enter(server string) (leave func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.connected[server] != nil {
		return nil, false
	}
	ended := make(chan struct{})
	l.connected[server] = ended
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.connected, server)
		close(ended)
	}, true
}

// Accept implements net.Listener.
func (l *links) Accept() (net.Conn, error) {
	select {
	case conn := <-l.next:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *links) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *links) Addr() net.Addr { return noAddress{} }

type noAddress struct{}

func (noAddress) Network() string { return "tcp" }
func (noAddress) String() string  { return "connections to servers" }

// served is a connection that this node has opened and that a server uses.
type served struct {
	*tls.Conn
	once sync.Once
	done chan struct{} // is closed with the connection
}

// shake does the handshake, and returns which server is at the other end.
func (s *served) shake(ctx context.Context) (server string, err error) {
	if err := s.HandshakeContext(ctx); err != nil {
		return "", err
	}
	state := s.ConnectionState()
	if state.NegotiatedProtocol != transfer.Protocol {
		return "", fmt.Errorf("the server does not speak %s", transfer.Protocol)
	}
	id, err := identity.FromCertificate(state.PeerCertificates[0])
	return id.Name(), err
}

// Close implements net.Conn. It does not wait for a peer that does not read.
func (s *served) Close() error {
	s.once.Do(func() { close(s.done) })
	return s.NetConn().Close()
}
