package sessions

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// turnsPerCore is how many messages with news of replicas are begun in a second
// for each core, and turnsAtOnce how many more at once after a quiet second. A
// message costs the same for one replica and for ten: where thousands of agents
// have news all the time, each waits for its turn and then gets all of it.
const (
	turnsPerCore = 500
	turnsAtOnce  = 2000
)

// turns wakes sessions that have news of replicas, one after the other. Were all
// woken that a change concerns, which may be hundreds, then whoever else wants to
// run would have to wait for all of them.
type turns struct {
	every time.Duration
	asked chan struct{} // has a word in it when somebody has come
	// pause waits while there is something better to do, and reports whether it had to; nil never does.
	pause func(context.Context) bool

	mu      sync.Mutex
	waiting []*session
	next    time.Time // of the turn that is not given away yet
}

func newTurns(pause func(context.Context) bool) *turns {
	return &turns{pause: pause, every: time.Second / time.Duration(turnsPerCore*runtime.GOMAXPROCS(0)), asked: make(chan struct{}, 1)}
}

// ask puts a session into the line.
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
		for _, one := range t.line() {
			if wait := t.take(time.Now()); wait > 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(wait):
				}
			}
			t.rest(ctx)
			one.grant()
			runtime.Gosched() // it runs before the next one is woken
		}
	}
}

// rest pauses if many had their turn just now. What was saved up by that is lost: they
// would all be woken at once.
func (t *turns) rest(ctx context.Context) {
	if t.pause != nil && t.busy(time.Now()) && t.pause(ctx) {
		t.next = time.Now()
	}
}

// busy reports whether more than half of the turns that may be given at once are used
// up.
func (t *turns) busy(now time.Time) bool { return now.Sub(t.next) < turnsAtOnce*t.every/2 }

// line takes those who wait.
func (t *turns) line() []*session {
	t.mu.Lock()
	defer t.mu.Unlock()
	waiting := t.waiting
	t.waiting = nil
	return waiting
}

// take gives away the next turn, and returns how long it is until then.
func (t *turns) take(now time.Time) time.Duration {
	if quiet := now.Add(-turnsAtOnce * t.every); t.next.Before(quiet) {
		t.next = quiet
	}
	wait := t.next.Sub(now)
	t.next = t.next.Add(t.every)
	return max(0, wait)
}
