package consensus_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// stopwatch records the durations.
type stopwatch struct {
	mu                sync.Mutex
	results           []string
	syncs, snapshots  int
	longest, shortest time.Duration
}

func (s *stopwatch) note(took time.Duration, f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.longest, s.shortest = max(s.longest, took), min(s.shortest, took)
	f()
}

func (s *stopwatch) Proposed(result string, took time.Duration) {
	s.note(took, func() { s.results = append(s.results, result) })
}
func (s *stopwatch) Synced(took time.Duration)      { s.note(took, func() { s.syncs++ }) }
func (s *stopwatch) Snapshotted(took time.Duration) { s.note(took, func() { s.snapshots++ }) }

func TestObserverReceivesDurations(t *testing.T) {
	watch := &stopwatch{}
	o := lone(t.TempDir())
	o.Observer = watch
	c := open(t, o)
	for _, n := range []int{1, 2, 1} { // the last one's name is in use
		_, _ = c.Propose(t.Context(), numbered(n))
	}
	_, _ = c.Propose(t.Context(), &statev1.Transaction{})
	if err := c.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Propose(t.Context(), numbered(3))
	watch.mu.Lock()
	defer watch.mu.Unlock()
	if want := []string{"accepted", "accepted", "refused", "refused", "failed"}; !slices.Equal(watch.results, want) {
		t.Errorf("the proposals were %v, want %v", watch.results, want)
	}
	if watch.syncs < 3 || watch.snapshots != 1 || watch.shortest < 0 || watch.longest == 0 {
		t.Errorf("observed %+v", watch)
	}
}
