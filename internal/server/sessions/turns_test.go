package sessions

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func TestTurnsAreGivenAtOnceUntilThereAreTooMany(t *testing.T) {
	turns := &turns{every: time.Millisecond}
	now := time.Now()
	for i := range turnsAtOnce + 1 {
		if wait := turns.take(now); wait > 0 {
			t.Fatalf("turn %d waits for %v", i, wait)
		}
	}
	for i := 1; i <= 3; i++ {
		if got, want := turns.take(now), time.Duration(i)*time.Millisecond; got != want {
			t.Errorf("the next turn but %d waits for %v, want %v", i-1, got, want)
		}
	}
	// Who comes after those has to wait for what is left of them only.
	if got := turns.take(now.Add(3 * time.Millisecond)); got != time.Millisecond {
		t.Errorf("a later one waits for %v", got)
	}
	later := now.Add(time.Hour)
	for i := range turnsAtOnce {
		if wait := turns.take(later); wait > 0 {
			t.Fatalf("after a quiet hour turn %d waits for %v", i, wait)
		}
	}
}

func TestManyAreWokenOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := &turns{every: time.Millisecond, asked: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- turns.run(ctx) }()
		turns.next = time.Now() // others had theirs until now
		var all []*session
		for range 5 {
			one := &session{wake: make(chan struct{}, 1), dirty: map[string]bool{}, turns: turns}
			one.mark("r1")
			one.mark("r2") // which does not make it wait twice
			all = append(all, one)
		}
		time.Sleep(2*time.Millisecond + time.Microsecond)
		synctest.Wait()
		for i, one := range all {
			if woken := len(one.wake) == 1; woken != (i <= 2) || one.free() != woken {
				t.Errorf("after two milliseconds session %d is awake: %v", i, woken)
			}
		}
		if _, dirty := all[0].take(); len(dirty) != 2 {
			t.Errorf("the first has news of %q", dirty)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the turns ended with %v", err)
		}
	})
}

// Who is asked for the logs of a replica must have heard of it.
func TestWhatIsToBeOpenedDoesNotWaitForATurn(t *testing.T) {
	one := &session{wake: make(chan struct{}, 1), dirty: map[string]bool{}, turns: newTurns(nil)}
	one.mark("r1")
	if one.free() {
		t.Error("news do not wait for their turn")
	}
	one.open(&v1.Open{})
	if !one.free() {
		t.Error("what is opened comes before the news")
	}
}

// Who has a single change to tell does not wait until something better is done; who fills a cluster does, and does not
// make up for it afterwards.
func TestOnlyManyTurnsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pauses := 0
		turns := &turns{every: time.Millisecond, pause: func(context.Context) bool {
			pauses++
			time.Sleep(3 * time.Second)
			return true
		}}
		turns.take(time.Now())
		turns.rest(t.Context())
		if pauses != 0 {
			t.Error("a single turn paused")
		}
		for range turnsAtOnce {
			turns.take(time.Now())
		}
		turns.rest(t.Context())
		if pauses != 1 {
			t.Errorf("many turns paused %d times", pauses)
		}
		turns.take(time.Now())
		if wait := turns.take(time.Now()); wait != time.Millisecond {
			t.Errorf("after the pause a turn waits for %s", wait)
		}
	})
}
