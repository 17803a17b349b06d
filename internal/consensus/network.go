package consensus

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// Network is how this server reaches the others and is reached by them. Who may is its business.
type Network interface {
	// Accept gives the next connection of another server, until Close.
	Accept() (net.Conn, error)
	Close() error
	// Dial connects to a server that is expected at an address. It must refuse another one that answers there: one
	// server that counted for two could make up a majority.
	Dial(server, address string, timeout time.Duration) (net.Conn, error)
}

const (
	// networkTimeout is how long one message to another server may take.
	networkTimeout = 5 * time.Second
	// networkPool is how many idle connections are kept to each server.
	networkPool = 3
)

// transport is raft's way over a Network. Raft knows addresses only; here an address says too who is meant there, as
// "server@address".
type transport struct {
	*raft.NetworkTransport
}

// Close also closes what raft keeps for the next message.
func (t transport) Close() error {
	t.CloseStreams()
	return t.NetworkTransport.Close()
}

func newTransport(o Options, configured *directory, log *hcLogger) transport {
	return transport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream:                &stream{network: o.Network, address: o.Address},
		ServerAddressProvider: &provider{newest: o.Addresses, configured: configured},
		MaxPool:               networkPool, Timeout: networkTimeout, Logger: log,
	})}
}

// stream makes a Network what raft wants.
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

// directory looks up what raft's own configuration says, once raft is there.
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

// provider knows the newest addresses: a server may have moved since it was added. What the configuration says is
// there before the state is, at the start.
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

// plainAddress is an address without the server that is meant.
func plainAddress(a raft.ServerAddress) string {
	if _, at, ok := strings.Cut(string(a), "@"); ok {
		return at
	}
	return string(a)
}
