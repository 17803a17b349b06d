package consensus

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Network connects this server with the others. It decides who may connect.
type Network interface {
	// Accept returns the next connection of another server, until Close.
	Accept() (net.Conn, error)
	Close() error
	// Dial connects to a server that is expected at an address. It must refuse another server that answers there: one
	// server that counted as two could make up a majority.
	Dial(server, address string, timeout time.Duration) (net.Conn, error)
}

const (
	// networkTimeout is how long one message to another server may take.
	networkTimeout = 5 * time.Second
	// networkPool is how many idle connections are kept to each server.
	networkPool = 3
	// networkInFlight is how many messages with entries are in flight to a server at once. With more than one, raft
	// 1.8.0 may wait forever for the goroutine that reads the answers, when a connection breaks or another server is
	// elected: that server gets no more entries, and this one cannot be stopped. Proposals are sent group by group
	// anyway.
	networkInFlight = 1
)

// transport is raft's transport over a Network. Raft knows only addresses; here an address also names the expected
// server, as "server@address".
type transport struct {
	*raft.NetworkTransport
	heartbeats *heartbeats
}

// SetHeartbeatHandler implements raft.Transport.
func (t transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(t.heartbeats.guard(handle))
}

// Close also closes pooled connections, and waits for heartbeats that are being handled.
func (t transport) Close() error {
	t.CloseStreams()
	err := t.NetworkTransport.Close()
	t.heartbeats.end()
	return err
}

// heartbeats are handled where they arrive and not by raft's own goroutines, for which a shutdown waits. A heartbeat
// that is handled later would find the disk closed when it stores its term, and raft would panic.
type heartbeats struct {
	mu       sync.Mutex
	ended    bool
	handling sync.WaitGroup
}

func (h *heartbeats) guard(handle func(raft.RPC)) func(raft.RPC) {
	return func(heartbeat raft.RPC) {
		if !h.begin() {
			heartbeat.Respond(nil, raft.ErrTransportShutdown)
			return
		}
		defer h.handling.Done()
		handle(heartbeat)
	}
}

func (h *heartbeats) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ended {
		h.handling.Add(1)
	}
	return !h.ended
}

func (h *heartbeats) end() {
	h.mu.Lock()
	h.ended = true
	h.mu.Unlock()
	h.handling.Wait()
}

func newTransport(o Options, configured *directory, log *hcLogger) transport {
	return transport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:                &stream{network: o.Network, address: o.Address},
		ServerAddressProvider: &provider{newest: o.Addresses, configured: configured},
		MaxPool:               networkPool, MaxRPCsInFlight: networkInFlight, Timeout: networkTimeout, Logger: log,
	}), &heartbeats{}}
}

// stream adapts a Network to raft.
type stream struct {
	network Network
	address string
}

func (s *stream) Accept() (net.Conn, error) { return s.network.Accept() }
func (s *stream) Close() error              { return s.network.Close() }
func (s *stream) Addr() net.Addr            { return address(s.address) }

// Dial implements raft.StreamLayer.
func (s *stream) Dial(target raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	server, at, ok := strings.Cut(string(target), "@")
	if !ok {
		return nil, fmt.Errorf("it is not known which server is at %s", target)
	}
	return s.network.Dial(server, at, timeout)
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

// directory looks up addresses in raft's own configuration, once raft exists.
type directory struct{ raft atomic.Pointer[raft.Raft] }

func (d *directory) address(id raft.ServerID) string {
	running := d.raft.Load()
	if running == nil {
		return ""
	}
	for _, server := range running.GetConfiguration().Configuration().Servers {
		if server.ID == id {
			return string(server.Address)
		}
	}
	return ""
}

// provider knows the newest addresses: a server may have moved since it was added. At startup, the configuration is
// there before the state.
type provider struct {
	newest     func(server string) string
	configured *directory
}

// ServerAddr implements raft.ServerAddressProvider.
func (p *provider) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	at := ""
	if p.newest != nil {
		at = p.newest(string(id))
	}
	if at == "" {
		at = p.configured.address(id)
	}
	if at == "" {
		return "", fmt.Errorf("the address of server %s is not known", id)
	}
	return raft.ServerAddress(string(id) + "@" + at), nil
}

// plainAddress is an address without the expected server.
func plainAddress(a raft.ServerAddress) string {
	if _, at, ok := strings.Cut(string(a), "@"); ok {
		return at
	}
	return string(a)
}
