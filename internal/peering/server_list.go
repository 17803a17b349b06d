package peering

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/resolver/manual"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/deadpeer"
)

// ServerList is where a node finds the servers. It learns of new ones while the node runs, and gRPC fails over between
// them by itself.
type ServerList struct {
	resolver *manual.Resolver
	// keep is called with every new list, to be there after a restart.
	keep func([]string) error

	mu      sync.Mutex
	session *serverConn // that of the newest session; nil before a server has answered
	first   string      // the server to try first; empty if none is better than the others
	via     string      // by which the machine joined; it may lead where no advertised address does
	all     []string
	open    map[*serverConn]bool
	changed chan struct{}
}

// NewServerList begins with the servers that the node knows. It calls keep with every new list.
func NewServerList(about datadir.Membership, keep func([]string) error) *ServerList {
	l := &ServerList{resolver: manual.NewBuilderWithScheme("cloudless"), keep: keep, via: about.Via, all: about.Servers, open: map[*serverConn]bool{}, changed: make(chan struct{})}
	l.resolver.InitialState(client.ResolverState(l.Addresses()))
	return l
}

// Target is what gRPC dials.
func (l *ServerList) Target() string { return "cloudless:///servers" }

// Addresses are all addresses to try, in this order.
func (l *ServerList) Addresses() []string {
	all, _ := l.Follow()
	return all
}

// Follow returns all addresses, and a channel that is closed when there are others.
func (l *ServerList) Follow() (addresses []string, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.via == "" || slices.Contains(l.all, l.via) {
		return slices.Clone(l.all), l.changed
	}
	return append(slices.Clone(l.all), l.via), l.changed
}

// Learn takes a new list.
func (l *ServerList) Learn(addresses []string) error {
	l.mu.Lock()
	known := slices.Equal(l.all, addresses)
	l.all = slices.Clone(addresses)
	if !known {
		close(l.changed)
		l.changed = make(chan struct{})
	}
	l.mu.Unlock()
	if known {
		return nil
	}
	l.resolver.UpdateState(client.ResolverState(l.Addresses()))
	return l.keep(addresses)
}

// Options let gRPC fail over between the servers.
func (l *ServerList) Options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithResolvers(l.resolver), grpc.WithContextDialer(l.Dial), grpc.WithStreamInterceptor(l.watchStream),
	}
}

// Dial connects to one of the addresses. The connection ends when the machine loses the address that it comes from.
func (l *ServerList) Dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := deadpeer.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	made := newServerConn(conn, address)
	made.closed = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.open, made)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[made] = true
	return made, nil
}

// Moved is called when the machine's addresses have changed. It ends connections from addresses that the machine no
// longer has: nothing can arrive by them, and it would take seconds to notice that.
func (l *ServerList) Moved(have []netip.Addr) {
	var gone []*serverConn
	l.mu.Lock()
	for conn := range l.open {
		from, ok := conn.LocalAddr().(*net.TCPAddr)
		if ok && !slices.Contains(have, from.AddrPort().Addr().Unmap().WithZone("")) {
			gone = append(gone, conn)
		}
	}
	l.mu.Unlock()
	for _, conn := range gone {
		_ = conn.Conn.Close() // gRPC reads that, and closes the rest
	}
}

// serverConn is a connection to a server. It stands in for its remote address, which
// gRPC shows to the users of a stream: while one server takes long to answer, gRPC
// dials the next one, so the newest connection need not be the one in use.
type serverConn struct {
	net.Conn
	address string // as in the list of servers
	began   time.Time
	heard   atomic.Int64 // when anything was last received, since began
	closed  func()       // may be nil
}

func newServerConn(conn net.Conn, address string) *serverConn {
	return &serverConn{Conn: conn, address: address, began: time.Now()}
}

func (c *serverConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(int64(time.Since(c.began)))
	}
	return n, err
}

// Close implements net.Conn.
func (c *serverConn) Close() error {
	if c.closed != nil {
		c.closed()
	}
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn.
func (c *serverConn) RemoteAddr() net.Addr { return c }

// Network implements net.Addr.
func (c *serverConn) Network() string { return "tcp" }

// String implements net.Addr.
func (c *serverConn) String() string { return c.address }

// Quiet is how long the server of the session has sent nothing.
func (l *ServerList) Quiet() time.Duration {
	l.mu.Lock()
	conn := l.session
	l.mu.Unlock()
	if conn == nil {
		return math.MaxInt64
	}
	return time.Since(conn.began) - time.Duration(conn.heard.Load())
}

// watchStream sees which server answers a session, and why streams end.
func (l *ServerList) watchStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		return nil, err
	}
	return &watchedStream{ClientStream: stream, list: l, unanswered: method == v1.AgentService_Session_FullMethodName}, nil
}

type watchedStream struct {
	grpc.ClientStream
	list       *ServerList
	unanswered bool // a session that no server has answered yet
}

func (s *watchedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil && s.unanswered:
		s.unanswered = false
		s.list.answered(s.conn())
	case err != nil && client.NoLeader(err): // the server can be reached but cannot reach the others
		s.list.moveOn(s.conn())
	}
	return err
}

// conn is the connection that the stream uses, nil before something was received.
func (s *watchedStream) conn() *serverConn {
	server, ok := peer.FromContext(s.Context())
	if !ok {
		return nil
	}
	conn, _ := server.Addr.(*serverConn)
	return conn
}

// answered notes which server the session is with.
func (l *ServerList) answered(conn *serverConn) {
	if conn == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.session, l.first = conn, conn.address
}

// Leave lets the next session be with another server than the newest one, if there is another.
func (l *ServerList) Leave() {
	l.mu.Lock()
	conn := l.session
	l.mu.Unlock()
	l.moveOn(conn)
}

// moveOn keeps new streams off this connection, if there is another server.
func (l *ServerList) moveOn(from *serverConn) {
	if from == nil {
		return
	}
	all := rotated(l.Addresses(), from.address)
	if len(all) < 2 || all[0] != from.address {
		return
	}
	others := all[1:]
	l.mu.Lock()
	if l.first == from.address {
		l.first = others[0]
	}
	l.mu.Unlock()
	l.resolver.UpdateState(client.ResolverState(others)) // gRPC keeps a connection whose address stays
	l.resolver.UpdateState(client.ResolverState(append(others, from.address)))
}

// rotated are the same addresses in the same order, but beginning with first.
func rotated(all []string, first string) []string {
	i := max(0, slices.Index(all, first))
	return slices.Concat(all[i:], all[:i])
}

// nearest are all addresses, that of the session first: others may hang, and a dial
// notices that only after a while.
func (l *ServerList) nearest() []string {
	all := l.Addresses()
	l.mu.Lock()
	defer l.mu.Unlock()
	return rotated(all, l.first)
}

// DialTLS connects to the first server that answers.
func (l *ServerList) DialTLS(ctx context.Context, config *tls.Config) (net.Conn, error) {
	var failures []error
	for _, address := range l.nearest() {
		conn, err := (&tls.Dialer{NetDialer: deadpeer.Dialer(), Config: config}).DialContext(ctx, "tcp", address)
		if err == nil {
			return conn, nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
	}
	return nil, fmt.Errorf("reach a server of the cluster: %w", errors.Join(failures...))
}
