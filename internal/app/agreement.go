package app

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/server"
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

// openAgreement opens the replicated state and finds the cluster's authority:
// beside the state where there was one before, in the state of a cluster that
// is founded now.
func (p *controlPlane) openAgreement(ctx context.Context, f *datadir.Folder, o planeOptions, u *undo) error {
	var err error
	if p.sealer, err = identity.OpenOrCreateSealer(f.KeyPath()); err != nil {
		return err
	}
	p.ca, err = server.OpenAuthority(f.AuthorityPath(), p.sealer)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.peers = peering.New(p.store, p.logger)
	p.consensus, err = consensus.Open(ctx, consensus.Options{
		Dir: f.Path("server", "raft"), Reached: f.ReachedPath(), ServerID: f.ServerUID, Address: server.AdvertisedAddress(o.advertise, o.address),
		Network: p.peers.Raft(), Addresses: p.peers.AddressOf,
		Store: p.store, Logger: p.logger, Bootstrap: f.Founds(), Bootstrapped: f.Cluster != "", Observer: p.metrics, Pause: p.collector.Pause, ElectionTimeout: o.election,
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
		if err := server.KeepAuthority(f.AuthorityPath(), p.store.Snapshot().Authority()); err != nil {
			return err
		}
	}
	return f.BindCluster(p.ca.Trust().Cluster())
}

// site is where a cluster is founded. What cannot be found out of the machine
// cannot be avoided.
func site(o planeOptions) server.Site {
	used, _ := nodenet.UsedByOthers()
	return server.Site{Address: server.AdvertisedAddress(o.advertise, o.address), Used: used}
}

// leaveTime bounds what a server does for the others before it stops.
const leaveTime = 5 * time.Second

// leave hands leadership over while this server can still be reached.
func (p *controlPlane) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	p.consensus.Leave(ctx)
}
