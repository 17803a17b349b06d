package server

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// fewCalls is how many calls a second with an identity are too few to keep a server busy.
	fewCalls = 100
	// callLook is the least time over which calls are counted.
	callLook = time.Second
)

// memberCalls counts the calls of callers with an identity.
type memberCalls struct {
	count atomic.Uint64

	mu     sync.Mutex
	looked time.Time
	seen   uint64
	few    bool
}

// Count is how many there were.
func (w *memberCalls) Count() uint64 { return w.count.Load() }

func (w *memberCalls) add() { w.count.Add(1) }

// areFew reports whether there were few calls lately.
func (w *memberCalls) areFew(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took := now.Sub(w.looked); took >= callLook {
		calls := w.Count()
		w.few = float64(calls-w.seen) < fewCalls*took.Seconds()
		w.looked, w.seen = now, calls
	}
	return w.few
}
