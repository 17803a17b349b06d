package server

import (
	"context"
	"sync"
)

// mailbox collects what several put into it and delivers it in batches: what
// comes while one is being sent goes with the next.
type mailbox[T any] struct {
	mu      sync.Mutex
	waiting []T
	closed  bool
	// some has a word in it when something waits, or nothing more will come.
	some chan struct{}
}

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{some: make(chan struct{}, 1)} }

func (m *mailbox[T]) put(one T) {
	m.mu.Lock()
	m.waiting = append(m.waiting, one)
	m.mu.Unlock()
	m.wake()
}

// close says that nothing more is put.
func (m *mailbox[T]) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.wake()
}

func (m *mailbox[T]) wake() {
	select {
	case m.some <- struct{}{}:
	default:
	}
}

// deliver sends until all is sent that will ever be put, ctx ends or sending
// fails.
func (m *mailbox[T]) deliver(ctx context.Context, send func([]T) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.some:
		}
		m.mu.Lock()
		batch, closed := m.waiting, m.closed
		m.waiting = nil
		m.mu.Unlock()
		for len(batch) > 0 {
			n := min(len(batch), maxBatch)
			if send(batch[:n]) != nil {
				return
			}
			batch = batch[n:]
		}
		if closed {
			return
		}
	}
}

// maxBatch bounds one message of a mailbox.
const maxBatch = 64
