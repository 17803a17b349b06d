package enroll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/internal/discover"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/peering"
)

// searchTime is how long to look for servers on this network.
const searchTime = 4 * time.Second

// locate is the address of a server of the token's cluster: the given one, or else one on this network that answers
// and proves itself.
func locate(ctx context.Context, address string, token identity.JoinToken, progress func(string)) (string, error) {
	if address != "" {
		return address, nil
	}
	progress("looking for the cluster on this network")
	searching, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	c := newCandidates(token)
	err := discover.Search(searching, func(f discover.Found) bool {
		c.try(searching, f, cancel)
		return false // a server that proves itself ends the search
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

// candidates are the answers to the search for a server.
type candidates struct {
	token   identity.JoinToken
	proving errgroup.Group

	mu     sync.Mutex
	proven string // the address of the first server that proved itself
	// strangers belong to other clusters; failures say why other candidates did not prove themselves.
	strangers, failures []string
}

// mostCandidates bounds how many are tried at the same time.
const mostCandidates = 64

func newCandidates(token identity.JoinToken) *candidates {
	c := &candidates{token: token}
	c.proving.SetLimit(mostCandidates)
	return c
}

// try lets a candidate prove itself, and calls found if it does. It does not wait, so that an unreachable candidate
// does not delay the others.
func (c *candidates) try(ctx context.Context, f discover.Found, found func()) {
	if !f.Trusts(c.token.CA().String()) {
		c.note(func() { c.strangers = append(c.strangers, f.Address) })
		return
	}
	c.proving.TryGo(func() error {
		// Any machine can claim that; only a server of the cluster can prove it.
		err := peering.Reach(ctx, f.Address, identity.JoinTLS(c.token.CA()))
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

// wait returns when no candidate is being tried any more.
func (c *candidates) wait() { _ = c.proving.Wait() }

// notFound says why no candidate will do.
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
