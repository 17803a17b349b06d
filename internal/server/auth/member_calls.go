package auth

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// fewCalls is the number of authenticated calls a second below which a server is not
	// busy with them.
	fewCalls = 100
	// callLook is the shortest time over which calls are counted.
	callLook = time.Second
)

// MemberCalls counts the calls of authenticated callers.
type MemberCalls struct {
	count atomic.Uint64

	mu     sync.Mutex
	looked time.Time
	seen   uint64
	few    bool
}

// Count returns the number of calls.
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
