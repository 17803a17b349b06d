package peering

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/servers"
	"github.com/cloudless/cloudless/internal/gossip"
	"github.com/cloudless/cloudless/internal/server/peers"
	"github.com/cloudless/cloudless/internal/state"
)

// Peers is how a server finds and reaches the others.
type Peers struct {
	store  *state.Store
	logger *slog.Logger

	raft, namesRaft, gossipLink *peers.Link
	// gossip exists once the port is open.
	gossip atomic.Pointer[gossip.Gossip]
	// changed tells that a server came, went or moved.
	changed chan struct{}
	// moved tells that the state has another address for a server.
	moved chan struct{}
	// key encrypts the gossip.
	key gossipKey
	Options
}

// Options are what Peers need to look for the other servers.
type Options struct {
	Self      servers.Self
	Server    Server
	Consensus *consensus.Consensus
	// Joined are the addresses of the servers that let this one join, separated by commas: it asks them before it has
	// any state.
	Joined string
	// Peer is the address of another server, in case none is where it was.
	Peer string
}

// Server is what Peers need from the server of this process.
type Server interface {
	// CheckDuplicate returns an error if the others say that this server is a copy of one that runs.
	CheckDuplicate(ctx context.Context, takesPart bool) error
	// OpenLink lets the others reach this server by a protocol.
	OpenLink(link *peers.Link, protocol string)
	// GossipKey is the key in the state, and its version.
	GossipKey() (key []byte, version uint64, err error)
	// AskGossipKey asks another server for the key.
	AskGossipKey(ctx context.Context, address string) (key []byte, version uint64, err error)
}

// New makes the links. The server finds no peer before Open.
func New(store *state.Store, logger *slog.Logger) *Peers {
	return &Peers{
		store: store, logger: logger, raft: peers.NewLink(peers.Raft), namesRaft: peers.NewLink(peers.NamesRaft), gossipLink: peers.NewLink(peers.Gossip),
		changed: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
}

// Raft is the link by which servers agree.
func (p *Peers) Raft() *peers.Link { return p.raft }

// NamesRaft is the link by which servers agree on the names of objects.
func (p *Peers) NamesRaft() *peers.Link { return p.namesRaft }

// Changed tells that a server came, went or moved.
func (p *Peers) Changed() <-chan struct{} { return p.changed }

// Open lets the others reach this server and begins to look for them, unless they say that it is a copy of a server
// that runs already.
func (p *Peers) Open(ctx context.Context, o Options) error {
	p.Options = o
	if err := o.Server.CheckDuplicate(ctx, false); err != nil {
		return err
	}
	o.Server.OpenLink(p.raft, peers.Raft)
	o.Server.OpenLink(p.namesRaft, peers.NamesRaft)
	o.Server.OpenLink(p.gossipLink, peers.Gossip)
	if err := p.takeStoredKey(); err != nil {
		return err
	}
	opened, err := gossip.Open(gossip.Options{
		Self:    gossip.Server{ID: o.Self.UID, Address: o.Self.Address, Zone: o.Self.Zone, Version: o.Self.Version},
		Network: p.gossipLink, Key: p.key.bytes, Logger: p.logger,
		Known: p.known,
		Changed: func() {
			select {
			case p.changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	p.gossip.Store(opened)
	return nil
}

// Close ends the gossip.
func (p *Peers) Close() error { return p.gossip.Load().Close() }

// Run gossips with the others, follows the key of the gossip, and keeps where the others are, until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.gossip.Load().Run(ctx) })
	g.Go(func() error { return p.followGossipKey(ctx) })
	g.Go(func() error { return p.keepAddresses(ctx) })
	return g.Wait()
}

// AddressOf is where a server is now: as it says itself, or as the state says.
func (p *Peers) AddressOf(uid string) string {
	if heard := p.heard(uid); heard.Alive && heard.Address != "" {
		return heard.Address
	}
	return p.store.Snapshot().Server(uid).GetSpec().GetAddress()
}

// heard is what a server says of itself.
func (p *Peers) heard(uid string) gossip.Server {
	if g := p.gossip.Load(); g != nil {
		return g.Server(uid)
	}
	return gossip.Server{}
}

// known are the servers to look for. If none of them answers, Options.Peer is one of them.
func (p *Peers) known() []gossip.Server {
	all := p.recorded()
	answers := func(s gossip.Server) bool { return s.ID != p.Self.UID && p.heard(s.ID).Alive }
	if p.Peer != "" && !slices.ContainsFunc(all, answers) {
		all = append(all, gossip.Server{Address: p.Peer})
	}
	return all
}

// recorded are the servers of the state and those that only Raft knows, because before there is a leader the state is
// that of the newest snapshot. Without either, they are the servers that let this one join.
func (p *Peers) recorded() []gossip.Server {
	var all []gossip.Server
	snap := p.store.Snapshot()
	for s := range snap.Servers("") {
		all = append(all, gossip.Server{ID: s.GetMetadata().GetUid(), Address: s.GetSpec().GetAddress()})
	}
	for _, s := range p.Consensus.Servers() {
		if snap.Server(s.ID) == nil && snap.Revocation(s.ID) == nil {
			all = append(all, gossip.Server{ID: s.ID, Address: s.Address})
		}
	}
	if len(all) == 0 && p.Joined != "" {
		for address := range strings.SplitSeq(p.Joined, ",") {
			all = append(all, gossip.Server{Address: address})
		}
	}
	return all
}

// Addresses are where this server looks for the others.
func (p *Peers) Addresses() []string {
	var all []string
	for _, s := range p.known() {
		if s.ID != p.Self.UID && s.Address != "" {
			all = append(all, s.Address)
		}
	}
	return all
}

// Members are the servers that should take part in consensus.
func (p *Peers) Members() []consensus.Member {
	var all []consensus.Member
	for s := range p.store.Snapshot().Servers("") {
		uid := s.GetMetadata().GetUid()
		all = append(all, consensus.Member{
			ID: uid, Name: s.GetMetadata().GetName(), Address: s.GetSpec().GetAddress(), Zone: s.GetSpec().GetZone(),
			Alive: uid == p.Self.UID || p.heard(uid).Alive,
		})
	}
	return all
}

// Seen are the other servers that are alive.
func (p *Peers) Seen() []servers.Seen {
	var all []servers.Seen
	for _, s := range p.gossip.Load().Servers() {
		if s.Alive && s.ID != p.Self.UID {
			all = append(all, servers.Seen{UID: s.ID, Address: s.Address, Zone: s.Zone, Version: s.Version})
		}
	}
	return all
}
