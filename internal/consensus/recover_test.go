package consensus_test

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// Two of three servers are lost for good; the third has everything acknowledged and continues alone.
func TestRecoveredServerContinuesAlone(t *testing.T) {
	members := cluster(t, 3)
	propose(t, members[0].Consensus, 0, 30)
	left := members[2]
	if err := left.WaitApplied(t.Context(), members[0].Stale().Index()); err != nil {
		t.Fatal(err)
	}
	for _, m := range members {
		closed(t, m.Consensus)
	}
	options := consensus.Options{Dir: left.options.Dir, ServerID: left.id, Store: state.New(), Logger: slog.New(slog.DiscardHandler)}
	if end, err := consensus.Recover(options); err != nil || end.Term == 0 || end.Index < 30 {
		t.Fatalf("recovered at %+v: %v", end, err)
	}
	options.Store = state.New()
	alone := open(t, options)
	propose(t, alone, 30, 31)
	read, err := alone.Read(t.Context())
	if err != nil || !slices.Equal(numbers(read), upTo(31)) {
		t.Fatalf("got %v, %v", numbers(read), err)
	}
	if servers := alone.Servers(); len(servers) != 1 || servers[0].ID != left.id {
		t.Errorf("the servers are %+v", servers)
	}
}

func TestRecoverNeedsALog(t *testing.T) {
	if _, err := consensus.Recover(lone(t.TempDir())); err == nil {
		t.Error("a cluster was recovered from an empty folder")
	}
}

// Newer addresses of the others may be in the log after the newest snapshot. The second time there is no log, and the
// third time one that begins after the snapshot.
func TestLostSeesTheWholeLog(t *testing.T) {
	o := lone(t.TempDir())
	c := open(t, o)
	propose(t, c, 0, 10)
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	propose(t, c, 10, 20)
	closed(t, c)
	for round, n := range []int{20, 20, 30} {
		if n == 30 {
			o.Store = state.New()
			c := open(t, o)
			propose(t, c, 20, 30)
			closed(t, c)
		}
		o.Store, o.Lost = state.New(), func(_ []consensus.Server, newest *state.Snapshot) error {
			if got := numbers(newest); !slices.Equal(got, upTo(n)) {
				t.Errorf("in round %d it is asked with %v", round, got)
			}
			return nil
		}
		if _, err := consensus.Recover(o); err != nil {
			t.Fatal(err)
		}
	}
}
