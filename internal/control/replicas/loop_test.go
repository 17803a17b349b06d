package replicas

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// log applies proposals at once, after the failures it was given.
type log struct {
	mu sync.Mutex
	*world
	failures  []error
	proposals int
}

func (l *log) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.proposals++
	if len(l.failures) > 0 {
		err := l.failures[0]
		l.failures = l.failures[1:]
		return state.Result{}, err
	}
	l.index++
	return l.store.Apply(l.index, proto.CloneOf(tx))
}

// do changes the world while the loop runs.
func (l *log) do(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	synctest.Wait()
}

// runLoop runs the loop around f, in the time of the test.
func runLoop(t *testing.T, l *log, f func()) error {
	t.Helper()
	var ended error
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- (&Loop{Store: l.store, Proposer: l}).Run(ctx) }()
		synctest.Wait()
		f()
		cancel()
		ended = <-done
	})
	return ended
}

// The loop pauses while it fills a cluster, and not for a few replicas.
func TestOnlyManyChangesPause(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "1000")
	synctest.Test(t, func(t *testing.T) {
		var pauses atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		pause := func(context.Context) bool { return pauses.Add(1) > 0 }
		go func() { done <- (&Loop{Store: l.store, Proposer: l, Pause: pause}).Run(ctx) }()
		synctest.Wait()
		l.do(func() { l.addWorkload("few", 3, "1m") })
		if got := pauses.Load(); got != 0 {
			t.Errorf("paused %d times for a few replicas", got)
		}
		l.do(func() { l.addWorkload("many", 3*maxReplicas, "1m") })
		if got := pauses.Load(); got < 3 {
			t.Errorf("paused %d times for many replicas", got)
		}
		cancel()
		<-done
	})
}

func TestLoopFollowsEveryChange(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addWorkload("before", 1, "1")
	err := runLoop(t, l, func() {
		if got := l.phases("before"); got[spec.PhasePending] != 1 {
			t.Errorf("what was there before the loop is %v", got)
		}
		l.do(func() { l.addNode("a", "4") })
		if got := l.phases("before"); got[spec.PhasePlaced] != 1 {
			t.Errorf("with a node it is %v", got)
		}
		l.do(func() { l.addWorkload("web", 2, "1") })
		l.do(func() { l.work() })
		l.do(func() { l.work() })
		if got := l.phases("web"); got[spec.PhaseRunning] != 2 {
			t.Errorf("a new workload is %v", got)
		}
		// A replica that ends makes room for one that waits.
		l.do(func() { l.addWorkload("waits", 1, "2") })
		if got := l.phases("waits"); got[spec.PhasePending] != 1 {
			t.Errorf("without room it is %v", got)
		}
		l.do(func() { l.scale("web", 0) })
		l.do(func() { l.work() })
		l.do(func() { l.work() })
		if got := l.phases("waits"); got[spec.PhasePlaced] != 1 {
			t.Errorf("with room it is %v", got)
		}
		l.do(func() { l.delete("web") })
		if l.snap().WorkloadByName("default", "web") != nil {
			t.Error("a deleted workload without replicas is still there")
		}
		before := l.proposals
		l.do(func() {})
		if l.proposals != before {
			t.Error("the loop proposes though nothing happens")
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the loop ended with %v", err)
	}
}

func TestLoopRetriesWhenTheStateHasMovedOn(t *testing.T) {
	l := &log{world: newWorld(t), failures: []error{&state.ConflictError{}, &state.ExistsError{}, &state.NotFoundError{}}}
	l.addNode("a", "4")
	l.addWorkload("web", 1, "1")
	_ = runLoop(t, l, func() {
		if got := l.phases("web"); got[spec.PhasePlaced] != 1 || l.proposals != 4 {
			t.Errorf("after %d proposals the replicas are %v", l.proposals, got)
		}
	})
}

func TestLoopEndsOnOtherErrors(t *testing.T) {
	lost := errors.New("leadership lost")
	l := &log{world: newWorld(t), failures: []error{lost}}
	l.addWorkload("web", 1, "1")
	if err := runLoop(t, l, func() {}); !errors.Is(err, lost) {
		t.Errorf("the loop ended with %v", err)
	}
}

func TestLoopBeginsAgainWhenItLags(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "4")
	_ = runLoop(t, l, func() {
		l.do(func() {
			l.addWorkload("web", 1, "1")
			// A restored snapshot has no change history.
			saved := l.saved()
			if err := l.store.Restore(bytes.NewReader(saved)); err != nil {
				t.Fatal(err)
			}
		})
		if got := l.phases("web"); got[spec.PhasePlaced] != 1 {
			t.Errorf("after a lag the replicas are %v", got)
		}
	})
}
