package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/discover"
	"github.com/cloudless/cloudless/internal/identity"
)

// searchTime is how long servers of this network are looked for.
const searchTime = 4 * time.Second

// locate is where a server of the token's cluster is: as the person says, or
// wherever one answers on this network and proves itself.
func locate(ctx context.Context, o local.JoinOptions, token identity.JoinToken) (string, error) {
	if o.Address != "" {
		return o.Address, nil
	}
	o.Progress("looking for the cluster on this network")
	searching, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	c := newCandidates(token)
	err := discover.Search(searching, func(f discover.Found) bool {
		c.try(searching, f, cancel)
		return false // whoever proves itself ends the search
	})
	cancel()
	c.wait()
	switch {
	case c.proven != "":
		return c.proven, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, discover.ErrNoNetwork):
		return "", fmt.Errorf("find a server: %w: name its address with: cloudless join ADDRESS", err)
	case err != nil:
		return "", fmt.Errorf("find a server on this network: %w", err)
	}
	return "", notFound(c.failures, c.strangers)
}

// candidates are those who answer when a server is looked for.
type candidates struct {
	token   identity.JoinToken
	proving errgroup.Group

	mu     sync.Mutex
	proven string // the address of the first that is a server of the token's cluster
	// strangers are of other clusters, and failures why others are not the one.
	strangers, failures []string
}

// mostCandidates bounds how many are tried at the same time, whoever shouts.
const mostCandidates = 64

func newCandidates(token identity.JoinToken) *candidates {
	c := &candidates{token: token}
	c.proving.SetLimit(mostCandidates)
	return c
}

// try has one prove itself, and calls found if it does. Nobody waits for it
// meanwhile: one that cannot be reached from here must not be in the way of
// another that can.
func (c *candidates) try(ctx context.Context, f discover.Found, found func()) {
	if f.Cluster != c.token.CA().String() {
		c.note(func() { c.strangers = append(c.strangers, f.Address) })
		return
	}
	c.proving.TryGo(func() error {
		// Anybody can answer so: only a server of the cluster can prove it.
		err := reach(ctx, f.Address, identity.JoinTLS(c.token.CA()))
		c.note(func() {
			switch {
			case err != nil:
				c.failures = append(c.failures, fmt.Sprintf("%s says that it is one, but %s", f.Address, err))
			case c.proven == "":
				c.proven = f.Address
				found()
			}
		})
		return nil
	})
}

func (c *candidates) note(what func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	what()
}

// wait returns when nobody is being tried any more.
func (c *candidates) wait() { _ = c.proving.Wait() }

// notFound says why none of those who answered will do.
func notFound(failures, strangers []string) error {
	const wayOut = "name its address with: cloudless join ADDRESS"
	switch {
	case len(failures) > 0:
		return fmt.Errorf("no server of the token's cluster can be reached on this network: %s", strings.Join(failures, "; "))
	case len(strangers) > 0:
		slices.Sort(strangers)
		return fmt.Errorf("only servers of other clusters than the token's answer on this network (%s): use a token of the cluster that is meant, or %s",
			strings.Join(strangers, ", "), wayOut)
	}
	return fmt.Errorf("no server answers on this network: servers are found if they are on the same network, listen there (--api-addr) and do not run with --announce=false; else %s", wayOut)
}

// serversToAsk are those of the cluster that this machine has joined: the one that
// the person names first, and then all that the machine knows of.
func (f *folder) serversToAsk(wish string) []string {
	var all []string
	if wish != "" {
		all = append(all, wish)
	}
	about, err := f.readMembership()
	if err != nil {
		return all
	}
	return append(all, newServerList(about, nil).addresses()...)
}

// prepareAnnouncement notes what those are told who look for servers.
func (p *controlPlane) prepareAnnouncement(f *folder, o planeOptions) {
	if !o.announce {
		return
	}
	p.announcement = &discover.AnnounceOptions{
		Name: f.ServerUID, Cluster: p.ca.Trust().Fingerprint().String(),
		Listen: p.server.Address(), Advertise: o.advertise, Logger: p.logger,
	}
}

// announceOnNetwork lets machines of the same network find this server. That it
// cannot is no reason not to serve.
func (p *controlPlane) announceOnNetwork(ctx context.Context) error {
	if p.announcement == nil {
		return nil
	}
	if err := discover.Announce(ctx, *p.announcement); err != nil {
		p.logger.Warn("cloudless join --discover does not find this server", "error", err)
	}
	return nil
}
