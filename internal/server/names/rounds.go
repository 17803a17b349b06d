package names

import (
	"context"
	"sync"
	"time"
)

// rounds lets callers share questions for an index. A caller waits for the next question: an answer to the one that is
// being asked may be too old for it.
type rounds struct {
	ask func(context.Context) (uint64, error)
	// ctx ends all questions.
	ctx context.Context

	mu      sync.Mutex
	next    *round // nil if nobody waits for the next question
	running bool
	asking  sync.WaitGroup
}

// round is a question and its answer, which is valid when done is closed.
type round struct {
	done  chan struct{}
	index uint64
	err   error
}

// roundPatience bounds a question.
const roundPatience = leaderPatience

func (r *rounds) index(ctx context.Context) (uint64, error) {
	mine := r.join()
	select {
	case <-mine.done:
		return mine.index, mine.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (r *rounds) join() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &round{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		r.running = true
		r.asking.Go(r.run)
	}
	return mine
}

// run asks until nobody waits.
func (r *rounds) run() {
	for now := r.take(); now != nil; now = r.take() {
		ctx, cancel := context.WithTimeout(r.ctx, roundPatience)
		now.index, now.err = r.ask(ctx)
		cancel()
		close(now.done)
	}
}

func (r *rounds) take() *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.next
	r.next, r.running = nil, now != nil
	return now
}

// wait returns when no question is being asked any more.
func (r *rounds) wait() { r.asking.Wait() }

// leaderPatience is how long a call waits for a leader, and leaderPause the pause before the next call to a server that
// should lead and does not.
const (
	leaderPatience = 10 * time.Second
	leaderPause    = 50 * time.Millisecond
)
