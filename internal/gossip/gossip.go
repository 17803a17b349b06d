// Package gossip is how the servers of a cluster find each other and detect failures: serf, over connections that the
// caller makes and authenticates.
//
// It guarantees:
// - Every server learns within seconds of every other that any one of them knows, and its current address.
// - A server that answers no other for a few seconds counts as dead, and as alive again once it answers.
// - Only servers with the current key understand the messages.
// - A full queue or a dead peer never blocks: lost messages are repeated.
//
// It must not know TLS, Raft or the state. It decides nothing: members and voters are decided elsewhere.
package gossip

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/hashicorp/serf/serf"
)

// Network carries the gossip. It must accept only servers.
type Network interface {
	Accept() (net.Conn, error)
	Close() error
	// Dial connects to a server that is expected at an address, or to any server there if server is empty.
	Dial(server, address string, timeout time.Duration) (net.Conn, error)
}

// Server is what a server says of itself.
type Server struct {
	// ID is its uid, Address where it is reached, host:port.
	ID, Address, Zone, Version string
	// Alive is whether the others hear from it.
	Alive bool
}

// Options configure a [Gossip].
type Options struct {
	// Self is what this server says of itself.
	Self    Server
	Network Network
	// Key encrypts the messages, whatever the Network does. Without one this server is not understood until it has one,
	// see [Gossip.UseKey].
	Key []byte
	// Known are servers to begin with; dead ones do no harm.
	Known  func() []Server
	Logger *slog.Logger
	// Changed is called when a server came, went or moved. It may be nil and must not block.
	Changed func()
}

// Timing of the gossip.
const (
	probeInterval = 500 * time.Millisecond
	probeTimeout  = 300 * time.Millisecond
	reconnect     = 2 * time.Second
	forget        = 24 * time.Hour
	// joinPause is between attempts to find others.
	joinPause = time.Second

	tagAddress, tagZone, tagVersion = "address", "zone", "version"
)

// Gossip is this server's part.
type Gossip struct {
	options   Options
	serf      *serf.Serf
	transport *transport
	ring      *memberlist.Keyring
	events    chan serf.Event
	// expelled are the ids of removed servers: serf reports them as leaving until it has noticed that they do not
	// answer.
	expelled sync.Map
}

// Open begins to gossip. [Gossip.Run] finds the others.
func Open(o Options) (*Gossip, error) {
	if o.Self.ID == "" || o.Network == nil || o.Logger == nil || o.Known == nil {
		return nil, errors.New("gossip needs Self, Network, Known and Logger")
	}
	at, err := place(o.Self.Address)
	if err != nil {
		return nil, err
	}
	ring, err := newRing(o.Key)
	if err != nil {
		return nil, err
	}
	g := &Gossip{options: o, ring: ring, events: make(chan serf.Event, 256), transport: newTransport(o.Network, at, o.Logger)}
	config := serf.DefaultConfig()
	config.Init()
	config.NodeName = o.Self.ID
	config.Tags = map[string]string{tagAddress: o.Self.Address, tagZone: o.Self.Zone, tagVersion: o.Self.Version}
	config.EventCh = g.events
	config.DisableCoordinates = true
	config.EnableNameConflictResolution = false
	config.LeavePropagateDelay, config.BroadcastTimeout = 100*time.Millisecond, time.Second
	config.ReconnectInterval, config.ReconnectTimeout, config.TombstoneTimeout = reconnect, forget, forget
	config.Logger = slog.NewLogLogger(o.Logger.With("component", "gossip").Handler(), slog.LevelDebug)
	config.MemberlistConfig = memberlistConfig(o, g.transport, config)
	config.MemberlistConfig.Keyring = ring
	if g.serf, err = serf.Create(config); err != nil {
		return nil, errors.Join(fmt.Errorf("begin to gossip: %w", err), g.transport.Shutdown())
	}
	g.transport.peers.Store(g.serf)
	return g, nil
}

// place is a server's address for memberlist. It accepts no names, and this server must not resolve them: here a name
// may mean the machine itself, or nothing before the network is up. Servers with a name are dialled by name, see
// transport.whereabouts.
func place(address string) (*net.TCPAddr, error) {
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("the address %s of this server: %w", address, err)
	}
	port, err := net.LookupPort("tcp", service)
	if err != nil {
		return nil, fmt.Errorf("the port of the address %s of this server: %w", address, err)
	}
	if at, err := net.ResolveTCPAddr("tcp", address); err == nil && (named(host) == "" || !at.IP.IsLoopback()) {
		return at, nil
	}
	return &net.TCPAddr{IP: net.IPv4zero, Port: port}, nil
}

// named returns the host if it is a name and not an IP address.
func named(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

func memberlistConfig(o Options, t *transport, s *serf.Config) *memberlist.Config {
	config := memberlist.DefaultLANConfig()
	config.Name = o.Self.ID
	config.Transport = t
	config.AdvertiseAddr, config.AdvertisePort = t.at.IP.String(), t.at.Port
	config.BindAddr, config.BindPort = config.AdvertiseAddr, config.AdvertisePort
	config.ProbeInterval, config.ProbeTimeout = probeInterval, probeTimeout
	config.EnableCompression = false
	// A server may come back at another address. Its certificate proves its identity.
	config.DeadNodeReclaimTime = time.Millisecond
	config.Logger = s.Logger
	return config
}

// Run looks for others whenever none is connected, and passes on changes, until ctx ends.
func (g *Gossip) Run(ctx context.Context) error {
	var joining sync.WaitGroup
	defer joining.Wait()
	joining.Go(func() { g.find(ctx) })
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event := <-g.events:
			g.report(event)
			if g.options.Changed != nil {
				g.options.Changed()
			}
		}
	}
}

// report logs which servers came and went.
func (g *Gossip) report(event serf.Event) {
	members, ok := event.(serf.MemberEvent)
	if !ok {
		return
	}
	for _, m := range members.Members {
		if m.Name == g.options.Self.ID {
			continue
		}
		switch event.EventType() {
		case serf.EventMemberJoin:
			g.options.Logger.Info("another server is there", "server", m.Name, "address", m.Tags[tagAddress])
		case serf.EventMemberFailed, serf.EventMemberLeave:
			g.options.Logger.Warn("another server is gone", "server", m.Name, "address", m.Tags[tagAddress])
		}
	}
}

// find keeps this server connected with at least one other.
func (g *Gossip) find(ctx context.Context) {
	ticker := time.NewTicker(joinPause)
	defer ticker.Stop()
	for {
		if missing := g.missing(); len(missing) > 0 {
			// A server with an id is reached only if it is the one that answers.
			if _, err := g.serf.Join(missing, false); err != nil {
				g.options.Logger.Debug("some servers cannot be reached", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// missing are the known servers that this one does not hear from.
func (g *Gossip) missing() []string {
	heard := g.members()
	var missing []string
	for _, s := range g.options.Known() {
		if s.ID == g.options.Self.ID || s.Address == "" || heard[s.ID].Alive {
			continue
		}
		if s.ID == "" { // the server that let this one join
			missing = append(missing, s.Address)
			continue
		}
		missing = append(missing, s.ID+"/"+s.Address)
	}
	return missing
}

func (g *Gossip) members() map[string]Server {
	all := map[string]Server{}
	for _, m := range g.serf.Members() {
		_, expelled := g.expelled.Load(m.Name)
		all[m.Name] = Server{
			ID: m.Name, Address: m.Tags[tagAddress], Zone: m.Tags[tagZone], Version: m.Tags[tagVersion],
			// A leaving server still answers. A server that has left once, and is found again by the others before it
			// has found them itself, is reported as leaving until it has heard of it.
			Alive: !expelled && (m.Status == serf.StatusAlive || m.Status == serf.StatusLeaving),
		}
	}
	return all
}

// Servers are all that this one has heard of, itself included.
func (g *Gossip) Servers() []Server {
	return slices.SortedFunc(maps.Values(g.members()), func(a, b Server) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
}

// Server returns what is known of one server; its ID is empty if nothing is.
func (g *Gossip) Server(id string) Server { return g.members()[id] }

// Close says goodbye and ends the gossip.
func (g *Gossip) Close() error {
	if err := g.serf.Leave(); err != nil {
		g.options.Logger.Debug("no server received the goodbye", "error", err)
	}
	err := g.serf.Shutdown()
	<-g.serf.ShutdownCh()
	return errors.Join(err, g.transport.Shutdown())
}
