package core

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"
)

// ReasonBusy in the details of an error: nothing was done, because too many calls of this kind run. The same call may
// succeed in a moment.
const ReasonBusy = "BUSY"

// Turns bounds how many expensive calls run at a time: in all, and of one caller, so that one caller cannot keep others
// waiting. Further calls wait for their turn. If too many wait already, they are refused at once.
type Turns struct {
	// what is the name of the calls in a refusal, such as "plans".
	what           string
	all, each      int
	waiting, queue int

	mu      sync.Mutex
	running int
	of      map[string]int // running calls, by caller
	line    []*turn        // those that wait, oldest first
	waits   map[string]int // by caller
}

type turn struct {
	caller string
	begin  chan struct{}
}

// NewTurns bounds the calls to all at a time, and to each of one caller. As many as queue wait, and as many as waiting of one
// caller.
func NewTurns(what string, all, each, queue, waiting int) *Turns {
	return &Turns{what: what, all: all, each: each, queue: queue, waiting: waiting, of: map[string]int{}, waits: map[string]int{}}
}

// Take waits for the turn of the caller in ctx. done must be called when the call ends.
func (t *Turns) Take(ctx context.Context) (done func(), err error) {
	caller := Caller(ctx).ID.String()
	t.mu.Lock()
	if t.free(caller) {
		t.begin(caller)
		t.mu.Unlock()
		return func() { t.end(caller) }, nil
	}
	if len(t.line) >= t.queue || t.waits[caller] >= t.waiting {
		t.mu.Unlock()
		return nil, WithReasons(codes.ResourceExhausted, fmt.Sprintf("too many %s at once: %d may run and %d of one caller, and others wait already; try again in a moment",
			t.what, t.all, t.each), ReasonBusy)
	}
	mine := &turn{caller: caller, begin: make(chan struct{})}
	t.line = append(t.line, mine)
	t.waits[caller]++
	t.mu.Unlock()
	select {
	case <-mine.begin:
		return func() { t.end(caller) }, nil
	case <-ctx.Done():
		t.leave(mine)
		return nil, ctx.Err()
	}
}

func (t *Turns) free(caller string) bool { return t.running < t.all && t.of[caller] < t.each }

func (t *Turns) begin(caller string) {
	t.running++
	t.of[caller]++
}

func (t *Turns) end(caller string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if t.of[caller]--; t.of[caller] == 0 {
		delete(t.of, caller)
	}
	t.next()
}

// next lets those begin whose turn it is.
func (t *Turns) next() {
	kept := t.line[:0]
	for _, one := range t.line {
		if !t.free(one.caller) {
			kept = append(kept, one)
			continue
		}
		t.begin(one.caller)
		t.waitsLess(one.caller)
		close(one.begin)
	}
	clear(t.line[len(kept):])
	t.line = kept
}

func (t *Turns) waitsLess(caller string) {
	if t.waits[caller]--; t.waits[caller] == 0 {
		delete(t.waits, caller)
	}
}

// leave ends the wait of a call that gave up. Its turn may have come at the same time.
func (t *Turns) leave(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, one := range t.line {
		if one == mine {
			t.line = append(t.line[:i:i], t.line[i+1:]...)
			t.waitsLess(mine.caller)
			return
		}
	}
	t.running--
	if t.of[mine.caller]--; t.of[mine.caller] == 0 {
		delete(t.of, mine.caller)
	}
	t.next()
}
