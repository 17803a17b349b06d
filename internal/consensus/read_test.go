package consensus_test

import (
	"testing"

	"github.com/cloudless/cloudless/internal/state"
)

// A server that has lost and regained leadership answers no reads from before: another one may have acknowledged writes
// in between. It waits until it has applied all of them.
func TestReadDoesNotTrustAnOlderTerm(t *testing.T) {
	leader := cluster(t, 1)[0]
	learn := leader.MissTerm()
	answered := make(chan *state.Snapshot, 1)
	failed := make(chan error, 1)
	go func() {
		snapshot, err := leader.Read(t.Context())
		if err != nil {
			failed <- err
			return
		}
		answered <- snapshot
	}()
	// Raft verifies its leadership long before that.
	for range 20 {
		if err := leader.Raft().VerifyLeader().Error(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-answered:
		t.Fatal("the read was answered by what an older term knew")
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	learn()
	select {
	case <-answered:
	case err := <-failed:
		t.Fatal(err)
	case <-t.Context().Done():
	}
}
