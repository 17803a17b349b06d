package consensus_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/cloudless/cloudless/internal/state"
)

// Proposals that come together travel together, but each has an outcome of its
// own: of several that want the same name, one gets it.
func TestProposalsOfAGroupHaveTheirOwnOutcomes(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	const names, rivals = 50, 8
	outcomes := make([][rivals]error, names)
	var all sync.WaitGroup
	for n := range names {
		for rival := range rivals {
			all.Go(func() { _, outcomes[n][rival] = c.Propose(t.Context(), numbered(n)) })
		}
	}
	all.Wait()
	for n, tried := range outcomes {
		refused := 0
		for _, err := range tried {
			if _, exists := errors.AsType[*state.ExistsError](err); exists {
				refused++
			} else if err != nil {
				t.Errorf("node %d: %v", n, err)
			}
		}
		if refused != rivals-1 {
			t.Errorf("node %d was refused %d times of %d", n, refused, rivals)
		}
	}
	if got := numbers(c.Stale()); !slices.Equal(got, upTo(names)) {
		t.Errorf("there are the nodes %v", got)
	}
}

// Proposals that wait for each other share entries of the log.
func TestProposalsShareEntries(t *testing.T) {
	c := open(t, lone(t.TempDir()))
	before := c.Stale().Index()
	const proposals = 400
	var all sync.WaitGroup
	for n := range proposals {
		all.Go(func() {
			if _, err := c.Propose(t.Context(), numbered(n)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if entries := c.Stale().Index() - before; entries >= proposals {
		t.Errorf("%d proposals took %d entries", proposals, entries)
	}
}
