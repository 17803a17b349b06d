package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/deadpeer"
)

// serverList is where a node finds the servers. It learns of new ones while the
// node runs, and gRPC fails over among them by itself.
type serverList struct {
	resolver *manual.Resolver
	// keep is called with every new list, to be there after a restart.
	keep func([]string) error

	began time.Time
	heard atomic.Int64 // when anything was last received from a server, since began

	mu      sync.Mutex
	current string // that of the newest connection
	via     string // by which the machine joined; it may lead where no advertised address does
	all     []string
}

func newServerList(about membership, keep func([]string) error) *serverList {
	l := &serverList{began: time.Now(), resolver: manual.NewBuilderWithScheme("cloudless"), keep: keep, via: about.Via, all: about.Servers}
	l.resolver.InitialState(l.state())
	return l
}

// target is what gRPC dials.
func (l *serverList) target() string { return "cloudless:///servers" }

// addresses are all to try, in this order.
func (l *serverList) addresses() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.via == "" || slices.Contains(l.all, l.via) {
		return slices.Clone(l.all)
	}
	return append(slices.Clone(l.all), l.via)
}

func (l *serverList) state() resolver.State {
	var state resolver.State
	for _, address := range l.addresses() {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: address})
	}
	return state
}

// learn takes a new list.
func (l *serverList) learn(addresses []string) error {
	l.mu.Lock()
	known := slices.Equal(l.all, addresses)
	l.all = slices.Clone(addresses)
	l.mu.Unlock()
	if known {
		return nil
	}
	l.resolver.UpdateState(l.state())
	return l.keep(addresses)
}

// options let gRPC fail over among the servers.
func (l *serverList) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithResolvers(l.resolver), grpc.WithContextDialer(l.dial), grpc.WithStreamInterceptor(l.watchStream),
	}
}

func (l *serverList) dial(ctx context.Context, address string) (net.Conn, error) {
	conn, err := deadpeer.Dialer().DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.current = address
	l.mu.Unlock()
	return &heardConn{Conn: conn, list: l}, nil
}

// heardConn notes when something is received.
type heardConn struct {
	net.Conn
	list *serverList
}

func (c *heardConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.list.heard.Store(int64(time.Since(c.list.began)))
	}
	return n, err
}

// quiet is how long nothing has come from any server.
func (l *serverList) quiet() time.Duration {
	return time.Since(l.began) - time.Duration(l.heard.Load())
}

// watchStream sees why streams end.
func (l *serverList) watchStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	stream, err := open(ctx, desc, conn, method, options...)
	if err != nil {
		l.moveOnFrom(err)
		return nil, err
	}
	return &watchedStream{ClientStream: stream, ended: l.moveOnFrom}, nil
}

type watchedStream struct {
	grpc.ClientStream
	ended func(error)
}

func (s *watchedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil {
		s.ended(err)
	}
	return err
}

// moveOnFrom leaves a server that can be reached but cannot reach the others.
func (l *serverList) moveOnFrom(err error) {
	if client.NoLeader(err) {
		l.moveOn()
	}
}

// moveOn has the next connection be to another server, if there is one.
func (l *serverList) moveOn() {
	l.mu.Lock()
	left := l.current
	l.mu.Unlock()
	state := l.state()
	i := slices.IndexFunc(state.Addresses, func(a resolver.Address) bool { return a.Addr == left })
	if i < 0 || len(state.Addresses) < 2 {
		return
	}
	others := append(slices.Clone(state.Addresses[i+1:]), state.Addresses[:i]...)
	l.resolver.UpdateState(resolver.State{Addresses: others}) // gRPC keeps a connection whose address stays
	l.resolver.UpdateState(resolver.State{Addresses: append(others, resolver.Address{Addr: left})})
}

// nearest are all addresses, that of the newest connection first: whoever else is
// there may hang, and be left only after a while.
func (l *serverList) nearest() []string {
	all := l.addresses()
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(all, l.current); i > 0 {
		all = slices.Insert(slices.Delete(all, i, i+1), 0, l.current)
	}
	return all
}

// dialTLS connects to the first server that answers.
func (l *serverList) dialTLS(ctx context.Context, config *tls.Config) (net.Conn, error) {
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
