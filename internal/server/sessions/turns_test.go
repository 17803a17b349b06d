package sessions

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestTurnsWaitOnlyWhenTheSavedOnesAreUsedUp(t *testing.T) {
	turns := &turns{every: time.Millisecond}
	now := time.Now()
	for i := range turnsAtOnce + 1 {
		if wait := turns.reserve(now); wait > 0 {
			t.Fatalf("turn %d waits for %v", i, wait)
		}
	}
	for i := 1; i <= 3; i++ {
		if got, want := turns.reserve(now), time.Duration(i)*time.Millisecond; got != want {
			t.Errorf("turn %d after the saved ones waits for %v, want %v", i, got, want)
		}
	}
	if got := turns.reserve(now.Add(3 * time.Millisecond)); got != time.Millisecond {
		t.Errorf("a turn three milliseconds later waits for %v", got)
	}
	later := now.Add(time.Hour)
	for i := range turnsAtOnce {
		if wait := turns.reserve(later); wait > 0 {
			t.Fatalf("after a quiet hour turn %d waits for %v", i, wait)
		}
	}
}

func TestSessionsWakeOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &turns{every: time.Millisecond, asked: make(chan struct{}, 1), next: time.Now()} // no turn is saved up
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- turns.run(ctx) }()
		var all []*session
		for range 5 {
			one := &session{wake: make(chan struct{}, 1), dirty: map[string]bool{}, turns: turns}
			one.mark("r1")
			one.mark("r2") // does not queue the session twice
			all = append(all, one)
		}
		time.Sleep(2*time.Millisecond + time.Microsecond)
		synctest.Wait()
		for i, one := range all {
			if awake := len(one.wake) == 1; awake != (i <= 2) || one.mayAssign() != awake {
				t.Errorf("after two milliseconds session %d is awake: %v", i, awake)
			}
		}
		if _, dirty := all[0].take(); len(dirty) != 2 {
			t.Errorf("the first session sends the replicas %q", dirty)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the turns ended with %v", err)
		}
	})
}

// An agent must know a replica before it can open the replica's log.
func TestStreamToOpenDoesNotWaitForATurn(t *testing.T) {
	one := &session{wake: make(chan struct{}, 1), dirty: map[string]bool{}, turns: newTurns(nil)}
	one.mark("r1")
	if one.mayAssign() {
		t.Error("a dirty replica does not wait for its turn")
	}
	one.open(&v1.Open{})
	if !one.mayAssign() {
		t.Error("the stream is opened before the agent knows its replica")
	}
}

// A single change does not wait for more important work. A burst does, and does not catch up on its turns afterwards.
func TestOnlyABurstOfTurnsPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := 0
		turns := &turns{every: time.Millisecond, pause: func(context.Context) bool {
			pauses++
			time.Sleep(3 * time.Second)
			return true
		}}
		turns.reserve(time.Now())
		turns.yield(t.Context())
		if pauses != 0 {
			t.Error("a single turn paused")
		}
		for range turnsAtOnce {
			turns.reserve(time.Now())
		}
		turns.yield(t.Context())
		if pauses != 1 {
			t.Errorf("a burst of turns paused %d times", pauses)
		}
		turns.reserve(time.Now())
		if wait := turns.reserve(time.Now()); wait != time.Millisecond {
			t.Errorf("after the pause a turn waits for %s", wait)
		}
	})
}
