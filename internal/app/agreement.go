package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/datadir"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/peering"
	"github.com/cloudless/cloudless/internal/server/membership"
)

// planeOptions are the settings of a server.
type planeOptions struct {
	// address to listen on; advertise is where others reach the server, derived from address if empty.
	address, advertise string
	// peer is the current address of another server, if all of them have moved.
	peer       string
	name, zone string
	version    string
	// announce lets machines of the same network find the server.
	announce bool
	// clock is nil for the machine's clock.
	clock func() time.Time
	// election is the election timeout; 0 for the default.
	election time.Duration
	// maxLogGrowth is how many bytes the log may grow before it is truncated; 0 for the default.
	maxLogGrowth int64
	// certificateTTL is the lifetime of issued certificates; 0 for the default.
	certificateTTL time.Duration
}

// openAgreement opens the replicated state and the cluster's authority: the stored copy, or the one in the state of a
// cluster that is founded now.
func (p *controlPlane) openAgreement(ctx context.Context, f *datadir.Folder, o planeOptions, u *undo) error {
	var err error
	p.sealer, p.ca, err = membership.OpenKeys(f.KeyPath(), f.AuthorityPath())
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.Cluster != "":
		return fmt.Errorf("%s is missing, and without it this server has no certificate: restore it from a backup, or let this server join again in another data folder", f.AuthorityPath())
	case errors.Is(err, fs.ErrNotExist):
		if p.sealer, err = identity.OpenOrCreateSealer(f.KeyPath()); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	p.peers = peering.New(p.store, p.logger)
	p.consensus, err = consensus.Open(ctx, consensus.Options{
		Dir: f.Path("server", "raft"), Reached: f.ReachedPath(), ServerID: f.ServerUID, Address: membership.AdvertisedAddress(o.advertise, o.address),
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
		if p.ca, err = membership.Found(ctx, p.consensus, p.sealer, site(o)); err != nil {
			return err
		}
		if err := membership.KeepAuthority(f.AuthorityPath(), p.store.Snapshot().Authority()); err != nil {
			return err
		}
	}
	return f.BindCluster(p.ca.Trust().Cluster())
}

// keeper keeps a copy of the cluster's authority in a folder.
func keeper(f *datadir.Folder) func(*statev1.Authority) error {
	return func(a *statev1.Authority) error { return membership.KeepAuthority(f.AuthorityPath(), a) }
}

// site describes the machine on which a cluster is founded. Errors are ignored: the new cluster then avoids fewer
// address ranges.
func site(o planeOptions) membership.Site {
	used, _ := nodenet.UsedByOthers()
	return membership.Site{Address: membership.AdvertisedAddress(o.advertise, o.address), Used: used}
}

// leaveTime limits how long a stopping server takes to hand over its leadership.
const leaveTime = 5 * time.Second

// leave hands over leadership while the others can still reach this server.
func (p *controlPlane) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	var groups sync.WaitGroup
	groups.Go(func() { p.names.Leave(ctx) })
	p.consensus.Leave(ctx)
	groups.Wait()
}
