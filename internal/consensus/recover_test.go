package consensus_test

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// TestOneServerGoesOnAlone: two of three are lost for good; the third has all that was acknowledged and goes on.
func TestOneServerGoesOnAlone(t *testing.T) {
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

func TestNothingIsRecoveredFromNothing(t *testing.T) {
	if _, err := consensus.Recover(lone(t.TempDir())); err == nil {
		t.Error("a cluster was recovered from an empty folder")
	}
}
