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

// Conns are the connections to other servers, one for each, kept while they
// are used.
type Conns struct {
	config peers.Config
	// Address says where a server is reached now, empty if that is not known.
	Address func(server string) string

	mu     sync.Mutex
	closed bool
	conns  map[string]*peerConn
}

type peerConn struct {
	address string
	*grpc.ClientConn
}

// NewConns has no connections yet.
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

// connectPatience is how long to wait for a connection to a server that is
// said to lead.
const connectPatience = 500 * time.Millisecond

// Ready returns a connection that is up, so that a call on it which fails may
// have been received, and one for which there is no connection was not.
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

// Servers are those to which there are connections.
func (p *Conns) Servers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.conns))
}

// Drop closes the connection to a server that is gone for good.
func (p *Conns) Drop(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.conns[server]; have != nil {
		_ = have.Close()
		delete(p.conns, server)
	}
}

// Close closes all connections, and keeps others from being made.
func (p *Conns) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for server, conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, server)
	}
}
