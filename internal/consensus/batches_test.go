package consensus_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// Proposals that come together travel together, but each has its own outcome: of several that want the same name, one
// gets it.
func TestProposalsOfABatchHaveTheirOwnOutcomes(t *testing.T) {
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

// The goroutine that is woken last runs first: the one with the smallest proposal.
func TestSmallestProposalIsAnsweredLast(t *testing.T) {
	if got := consensus.AnswerOrder(300, 20, 65_000, 100); !slices.Equal(got, []int{65_000, 300, 100, 20}) {
		t.Errorf("they are answered in the order %v", got)
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

// Clients that were just answered are about to propose again. A batch waits for many of them, so that they travel
// together, and not for few.
func TestBatchesWaitForManyProposers(t *testing.T) {
	waited := func(batches *consensus.Batches, come int) time.Duration {
		began := time.Now()
		batches.Come(come)
		if got := batches.Take(); got != come {
			t.Errorf("%d came, %d were taken", come, got)
		}
		return time.Since(began).Round(time.Microsecond)
	}
	tests := []struct {
		name  string
		sizes []int // of the batches before
		back  int   // how many come back, 100 us after the last batch
		want  time.Duration
	}{
		{"few", []int{3, 2, 3}, 0, 0},
		{"many who all come back", []int{8}, 8, 100 * time.Microsecond},
		{"many, some of which stay away", []int{8}, 7, time.Millisecond},
		{"as many as lately", []int{8, 2, 1}, 8, 100 * time.Microsecond},
		{"many, long ago", []int{8, 1, 1, 1, 1}, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				batches := &consensus.Batches{}
				for _, size := range tt.sizes[:len(tt.sizes)-1] {
					waited(batches, size)
				}
				time.AfterFunc(100*time.Microsecond, func() { batches.Come(tt.back) })
				if got := waited(batches, tt.sizes[len(tt.sizes)-1]); got != tt.want {
					t.Errorf("waited %s, want %s", got, tt.want)
				}
				time.Sleep(time.Second)
			})
		})
	}
}
