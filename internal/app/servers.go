package app

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/servers"
	"github.com/cloudless/cloudless/internal/gossip"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/server"
	"github.com/cloudless/cloudless/internal/server/peers"
)

// planeOptions are what a server is told at its start.
type planeOptions struct {
	// address to listen on; advertise is where others reach it, chosen if empty.
	address, advertise string
	// peer is where one of the others is, if none is where it was.
	peer       string
	name, zone string
	version    string
	// announce is whether machines of the same network may find it.
	announce bool
	// clock is what it takes for the time; nil stands for the machine's.
	clock func() time.Time
	// election is how long it waits for one that leads; 0 stands for the default.
	election time.Duration
	// maxLogGrowth is by how many bytes its log may grow before it is shortened; 0 stands for the default.
	maxLogGrowth int64
	// certificateTTL is how long the certificates that it issues hold; 0 stands for the default.
	certificateTTL time.Duration
}

// fellowship is how a server finds and reaches the others.
type fellowship struct {
	raft, gossipLink *peers.Link
	self             servers.Self
	// gossip is there once the port is.
	gossip atomic.Pointer[gossip.Gossip]
	// stirred tells that a server came, went or moved.
	stirred chan struct{}
	// moved has a word in it when one is elsewhere by what the state says.
	moved chan struct{}
	// key is what the gossip is encrypted with; joined is where to ask for it
	// before the state is there.
	key    gossipKey
	joined string
	// peer is where this server was told that another one is.
	peer string
}

func (f *folder) authorityPath() string { return f.sub("server", "authority") }

// reachedPath lies beside the log, so that it is there when that is gone.
func (f *folder) reachedPath() string { return f.sub("server", "reached") }

// openAuthority opens the authority of the cluster that the folder's server belongs to.
func (f *folder) openAuthority() (*identity.CA, error) {
	sealer, err := identity.OpenOrCreateSealer(f.sub("server", "kek.json"))
	if err != nil {
		return nil, err
	}
	return server.OpenAuthority(f.authorityPath(), sealer)
}

// founds reports whether this folder's server makes a cluster of its own if
// there is none in it. One that has joined never does.
func (f *folder) founds() bool { return f.Joined == "" }

// openAgreement opens the replicated state and finds the cluster's authority:
// beside the state where there was one before, in the state of a cluster that
// is founded now.
func (p *controlPlane) openAgreement(ctx context.Context, f *folder, o planeOptions, u *undo) error {
	var err error
	if p.sealer, err = identity.OpenOrCreateSealer(f.sub("server", "kek.json")); err != nil {
		return err
	}
	p.ca, err = server.OpenAuthority(f.authorityPath(), p.sealer)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.fellows = &fellowship{
		raft: peers.NewLink(peers.Raft), gossipLink: peers.NewLink(peers.Gossip), stirred: make(chan struct{}, 1), moved: make(chan struct{}, 1),
	}
	p.consensus, err = consensus.Open(ctx, consensus.Options{
		Dir: f.sub("server", "raft"), Reached: f.reachedPath(), ServerID: f.ServerUID, Address: server.AdvertisedAddress(o.advertise, o.address),
		Network: p.fellows.raft, Addresses: p.addressOf,
		Store: p.store, Logger: p.logger, Bootstrap: f.founds(), Bootstrapped: f.Cluster != "", Observer: p.metrics, Pause: p.collector.Pause, ElectionTimeout: o.election,
		MaxLogGrowth: o.maxLogGrowth,
	})
	if err != nil {
		return err
	}
	u.add(func() { logError(p.logger, "close consensus", p.consensus.Close()) })
	if p.ca == nil {
		if err := p.consensus.WaitLeader(ctx); err != nil {
			return err
		}
		if p.ca, err = server.Found(ctx, p.consensus, p.sealer, site(o)); err != nil {
			return err
		}
		if err := server.KeepAuthority(f.authorityPath(), p.store.Snapshot().Authority()); err != nil {
			return err
		}
	}
	return f.belongTo(p.ca.Trust().Cluster())
}

// site is where a cluster is founded. What cannot be found out of the machine
// cannot be avoided.
func site(o planeOptions) server.Site {
	used, _ := nodenet.UsedByOthers()
	return server.Site{Address: server.AdvertisedAddress(o.advertise, o.address), Used: used}
}

// meet lets the others reach this server and begins to look for them, unless
// they say that it is a copy of one that runs already.
func (p *controlPlane) meet(ctx context.Context, f *folder, o planeOptions, u *undo) error {
	if err := p.server.RefuseCopy(ctx, false); err != nil {
		return err
	}
	p.server.OpenLink(p.fellows.raft, peers.Raft)
	p.server.OpenLink(p.fellows.gossipLink, peers.Gossip)
	p.fellows.joined, p.fellows.peer = f.Joined, o.peer
	p.fellows.self = servers.Self{
		Seen: servers.Seen{UID: f.ServerUID, Address: p.server.Advertised(), Zone: o.zone, Version: o.version},
		Name: nodeName(local.Machine{Name: o.name}),
	}
	if err := p.takeStoredKey(); err != nil {
		return err
	}
	opened, err := gossip.Open(gossip.Options{
		Self: gossip.Server{
			ID: f.ServerUID, Address: p.fellows.self.Address, Zone: o.zone, Version: o.version,
		},
		Network: p.fellows.gossipLink, Key: p.fellows.key.bytes, Logger: p.logger,
		Known: p.known,
		Changed: func() {
			select {
			case p.fellows.stirred <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	p.fellows.gossip.Store(opened)
	u.add(func() { logError(p.logger, "close gossip", opened.Close()) })
	return nil
}

// addressOf is where a server is now: as it says itself, or as the state says.
func (p *controlPlane) addressOf(uid string) string {
	if heard := p.heard(uid); heard.Alive && heard.Address != "" {
		return heard.Address
	}
	return p.store.Snapshot().Server(uid).GetSpec().GetAddress()
}

// heard is what a server says of itself.
func (p *controlPlane) heard(uid string) gossip.Server {
	if g := p.fellows.gossip.Load(); g != nil {
		return g.Server(uid)
	}
	return gossip.Server{}
}

// known are the servers to look for: those that this one has heard of, and, as
// long as none of them answers, whoever is where it was told that one is.
func (p *controlPlane) known() []gossip.Server {
	all := p.heardOf()
	answers := func(s gossip.Server) bool { return s.ID != p.fellows.self.UID && p.heard(s.ID).Alive }
	if p.fellows.peer != "" && !slices.ContainsFunc(all, answers) {
		all = append(all, gossip.Server{Address: p.fellows.peer})
	}
	return all
}

// heardOf are the servers of the state, those that raft knows besides, because before
// somebody leads the state is that of the newest snapshot, and, before there is any,
// those that let this one join.
func (p *controlPlane) heardOf() []gossip.Server {
	var all []gossip.Server
	snap := p.store.Snapshot()
	for s := range snap.Servers("") {
		all = append(all, gossip.Server{ID: s.GetMetadata().GetUid(), Address: s.GetSpec().GetAddress()})
	}
	for _, s := range p.consensus.Servers() {
		if snap.Server(s.ID) == nil && snap.Revocation(s.ID) == nil {
			all = append(all, gossip.Server{ID: s.ID, Address: s.Address})
		}
	}
	if len(all) == 0 && p.fellows.joined != "" {
		for address := range strings.SplitSeq(p.fellows.joined, ",") {
			all = append(all, gossip.Server{Address: address})
		}
	}
	return all
}

// members are the servers that should take part, for the pilot.
func (p *controlPlane) members() []consensus.Member {
	var all []consensus.Member
	for s := range p.store.Snapshot().Servers("") {
		uid := s.GetMetadata().GetUid()
		all = append(all, consensus.Member{
			ID: uid, Name: s.GetMetadata().GetName(), Address: s.GetSpec().GetAddress(), Zone: s.GetSpec().GetZone(),
			Alive: uid == p.fellows.self.UID || p.heard(uid).Alive,
		})
	}
	return all
}

// seen are the other servers that are alive.
func (p *controlPlane) seen() []servers.Seen {
	var all []servers.Seen
	for _, s := range p.fellows.gossip.Load().Servers() {
		if s.Alive && s.ID != p.fellows.self.UID {
			all = append(all, servers.Seen{UID: s.ID, Address: s.Address, Zone: s.Zone, Version: s.Version})
		}
	}
	return all
}

// leaveTime bounds what a server does for the others before it stops.
const leaveTime = 5 * time.Second

// leave hands leadership over while this server can still be reached.
func (p *controlPlane) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	p.consensus.Leave(ctx)
}
