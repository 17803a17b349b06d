package auth

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

// MemberCalls counts the calls of callers with an identity.
type MemberCalls struct {
	count atomic.Uint64

	mu     sync.Mutex
	looked time.Time
	seen   uint64
	few    bool
}

// Count is how many there were.
func (w *MemberCalls) Count() uint64 { return w.count.Load() }

func (w *MemberCalls) add() { w.count.Add(1) }

// AreFew reports whether there were few calls lately.
func (w *MemberCalls) AreFew(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if took := now.Sub(w.looked); took >= callLook {
		calls := w.Count()
		w.few = float64(calls-w.seen) < fewCalls*took.Seconds()
		w.looked, w.seen = now, calls
	}
	return w.few
}
