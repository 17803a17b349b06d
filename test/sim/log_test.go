package sim

import (
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/state"
)

// The simulator judges by everything that was committed, even while no server has applied
// all of it: the leader that had was restarted, and its followers lag.
func TestNewestStateSurvivesTheLeader(t *testing.T) {
	w := newWorld(Story{Seed: 1})
	w.run(w.now + time.Minute)
	leader := w.leader.server
	want := leader.store.Snapshot().Count(state.KindNode)
	if want == 0 {
		t.Fatal("no machine has joined")
	}
	w.stop(leader, 0, losesPower)
	w.start(leader)
	if got := w.newest().Count(state.KindNode); got != want {
		t.Errorf("%d nodes are known after the leader is gone, want the %d that were agreed on", got, want)
	}
}
