package sessions

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// turnsPerCore is the number of turns in a second for each core, and turnsAtOnce the
// number of turns that a quiet period may save up. A message costs the same for one
// replica and for ten: if thousands of agents have news all the time, each of them waits
// for its turn, and its message then carries several replicas.
const (
	turnsPerCore = 500
	turnsAtOnce  = 2000
)

// turns wakes the sessions that have dirty replicas, one after the other. One change may
// concern hundreds of sessions. If all of them woke at once, every other goroutine would
// have to wait for them.
type turns struct {
	every time.Duration
	asked chan struct{} // has an element when a session has asked
	// pause waits while more important work runs, and reports whether it had to wait. It may be nil.
	pause func(context.Context) bool
	next  time.Time // when the next turn is due; only run uses it

	mu      sync.Mutex
	waiting []*session
}

func newTurns(pause func(context.Context) bool) *turns {
	return &turns{pause: pause, every: time.Second / time.Duration(turnsPerCore*runtime.GOMAXPROCS(0)), asked: make(chan struct{}, 1)}
}

// ask queues a session for a turn.
func (t *turns) ask(s *session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting = append(t.waiting, s)
	select {
	case t.asked <- struct{}{}:
	default:
	}
}

// run gives turns until ctx ends.
func (t *turns) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.asked:
		}
		for _, one := range t.takeWaiting() {
			if wait := t.reserve(time.Now()); wait > 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(wait):
				}
			}
			t.yield(ctx)
			one.grant()
			runtime.Gosched() // the session runs before the next one wakes
		}
	}
}

// yield pauses if many turns were given just now. The pause saves up no turns: otherwise
// all sessions would wake at once after it.
func (t *turns) yield(ctx context.Context) {
	if t.pause != nil && t.busy(time.Now()) && t.pause(ctx) {
		t.next = time.Now()
	}
}

// busy reports whether more than half of the saved turns are used up.
func (t *turns) busy(now time.Time) bool { return now.Sub(t.next) < turnsAtOnce*t.every/2 }

func (t *turns) takeWaiting() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting
	t.waiting = nil
	return waiting
}

// reserve takes the next turn and returns how long it is until then.
func (t *turns) reserve(now time.Time) time.Duration {
	if quiet := now.Add(-turnsAtOnce * t.every); t.next.Before(quiet) {
		t.next = quiet
	}
	wait := t.next.Sub(now)
	t.next = t.next.Add(t.every)
	return max(0, wait)
}
