package relay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/peers"
)

// Conns holds one connection to each other server, as long as it is used.
type Conns struct {
	config peers.Config
	// Address returns the current address of a server; empty if it is unknown.
	Address func(server string) string

	mu     sync.Mutex
	closed bool
	conns  map[string]*peerConn
	// replaced are closed a moment after Renew.
	replaced []*peerConn
}

type peerConn struct {
	address string
	*grpc.ClientConn
}

// NewConns returns Conns without connections.
func NewConns(config peers.Config, address func(string) string) *Conns {
	return &Conns{config: config, Address: address, conns: map[string]*peerConn{}}
}

// get returns the connection to a server, which may not be up yet.
func (p *Conns) get(server string) (*grpc.ClientConn, error) {
	address := p.Address(server)
	if address == "" {
		return nil, fmt.Errorf("the address of server %s is not known", server)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, core.ErrStopping
	}
	have := p.conns[server]
	if have != nil && have.address == address {
		return have.ClientConn, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(peers.TLS(p.config, server))),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.ForceCodecV2(api.ClientCodec())),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to server %s: %w", server, err)
	}
	if have != nil {
		_ = have.Close()
	}
	p.conns[server] = &peerConn{address: address, ClientConn: conn}
	return conn, nil
}

// connectPatience is how long to wait for a connection to the server that is known as the
// leader.
const connectPatience = 500 * time.Millisecond

// Ready returns a connection that is up. If it returns an error, the server has not
// received the call. A call that fails on the connection may have been received.
func (p *Conns) Ready(ctx context.Context, server string) (*grpc.ClientConn, error) {
	conn, err := p.get(server)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return conn, nil
		case connectivity.Idle:
			conn.Connect()
		case connectivity.TransientFailure:
			return nil, fmt.Errorf("server %s cannot be reached", server)
		case connectivity.Shutdown:
			return nil, errors.New("the connection was replaced")
		}
		if !conn.WaitForStateChange(ctx, state) {
			return nil, fmt.Errorf("server %s does not answer", server)
		}
	}
}

// Servers returns the servers with a connection.
func (p *Conns) Servers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.conns))
}

// Drop closes the connection to a server that was removed.
func (p *Conns) Drop(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.conns[server]; have != nil {
		_ = have.Close()
		delete(p.conns, server)
	}
}

// renewGrace is how long calls may go on on a connection that was replaced.
const renewGrace = 10 * time.Second

// Renew makes new calls use new connections, by the certificate that this server has now. Calls in progress get a
// moment to end.
func (p *Conns) Renew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for server, conn := range p.conns {
		p.replaced = append(p.replaced, conn)
		delete(p.conns, server)
	}
	time.AfterFunc(renewGrace, p.closeReplaced)
}

// closeReplaced closes the connections that new ones have replaced.
func (p *Conns) closeReplaced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.replaced {
		_ = conn.Close()
	}
	p.replaced = nil
}

// Close closes all connections, and prevents new ones.
func (p *Conns) Close() {
	p.closeReplaced()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for server, conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, server)
	}
}
