package relay

import (
	"context"
	"slices"
	"sync"
)

// The limits of one message of a mailbox: the next items wait for it, and the other side
// must accept it. A larger item goes alone.
const (
	maxBatch      = 64
	maxBatchBytes = 1 << 20
)

// mailbox collects items from several goroutines and delivers them in batches: items that
// arrive while one batch is being sent go with the next.
type mailbox[T any] struct {
	size func(T) int // in bytes, about

	mu      sync.Mutex
	waiting []T
	closed  bool
	// some holds a value when items wait, or when the mailbox is closed.
	some chan struct{}
}

func newMailbox[T any](size func(T) int) *mailbox[T] {
	return &mailbox[T]{size: size, some: make(chan struct{}, 1)}
}

func (m *mailbox[T]) put(one T) {
	m.mu.Lock()
	m.waiting = append(m.waiting, one)
	m.mu.Unlock()
	m.wake()
}

// withdraw removes the item that matches, and reports whether it was still there.
func (m *mailbox[T]) withdraw(match func(T) bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := slices.IndexFunc(m.waiting, match)
	if at < 0 {
		return false
	}
	m.waiting = slices.Delete(m.waiting, at, at+1)
	return true
}

// empty removes and returns all items.
func (m *mailbox[T]) empty() []T {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.waiting
	m.waiting = nil
	return all
}

// close says that no more items will come.
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

// deliver sends until the mailbox is closed and empty, ctx ends or sending fails.
func (m *mailbox[T]) deliver(ctx context.Context, send func([]T) error) {
	for ctx.Err() == nil {
		batch, closed := m.take()
		switch {
		case len(batch) > 0:
			if send(batch) != nil {
				return
			}
			continue
		case closed:
			return
		}
		select {
		case <-ctx.Done():
		case <-m.some:
		}
	}
}

// take removes the next batch. The rest can still be withdrawn.
func (m *mailbox[T]) take() (batch []T, closed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, bytes := 0, 0
	for ; n < min(len(m.waiting), maxBatch); n++ {
		if bytes += m.size(m.waiting[n]); n > 0 && bytes > maxBatchBytes {
			break
		}
	}
	if n == len(m.waiting) {
		batch, m.waiting = m.waiting, nil
		return batch, m.closed
	}
	batch = slices.Clone(m.waiting[:n])
	m.waiting = slices.Delete(m.waiting, 0, n)
	return batch, m.closed
}
