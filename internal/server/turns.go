package server

import (
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

// turns says when an agent may be sent its news.
type turns struct {
	every time.Duration

	mu   sync.Mutex
	next time.Time // whose turn is not given away yet
}

func newTurns() *turns {
	return &turns{every: time.Second / time.Duration(turnsPerCore*runtime.GOMAXPROCS(0))}
}

// take gives away the next turn, and returns how long it is until then.
func (t *turns) take(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if quiet := now.Add(-turnsAtOnce * t.every); t.next.Before(quiet) {
		t.next = quiet
	}
	wait := t.next.Sub(now)
	t.next = t.next.Add(t.every)
	return max(0, wait)
}
