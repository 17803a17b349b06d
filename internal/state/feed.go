package state

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// feedSize is how many changes a subscriber may be behind: about a second of the fastest writing seen.
const feedSize = 1 << 15

// Change is one object that was created (Old is nil), replaced or deleted (New is nil).
type Change struct {
	Kind     Kind
	Old, New Object
}

// feed publishes snapshots and the changes between them. It keeps the newest changes for all subscribers together:
// a subscriber is no more than a position, so that there is nothing to clean up after one.
type feed struct {
	newest atomic.Pointer[Snapshot]

	mu     sync.Mutex
	ring   []Change // made for the first change
	oldest uint64   // position of the oldest change that is kept
	end    uint64   // position after the newest change
	// last are the changes of the newest snapshot: whoever has seen all before gets them without a copy.
	last []Change
	// wake is closed by the next snapshot. It is nil while nobody waits, so that writers pay for waiters only.
	wake chan struct{}
}

// publish makes a snapshot the newest one, together with the changes that led to it.
func (f *feed) publish(s *Snapshot, changes []Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ring == nil && len(changes) > 0 {
		f.ring = make([]Change, feedSize)
	}
	for _, change := range changes {
		f.ring[f.end%feedSize] = change
		f.end++
	}
	f.last = slices.Clip(changes)
	if f.end > feedSize {
		f.oldest = max(f.oldest, f.end-feedSize)
	}
	s.position = f.end
	f.newest.Store(s)
	f.broadcast()
}

// reset makes a snapshot the newest one that has nothing to do with those before it.
func (f *feed) reset(s *Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ring, f.last = nil, nil
	f.end++ // a position that no subscriber has reached
	f.oldest = f.end
	s.position = f.end
	f.newest.Store(s)
	f.broadcast()
}

func (f *feed) broadcast() {
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// after returns the changes after a position, or what to wait for if there are none.
func (f *feed) after(position uint64) ([]Change, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if position < f.oldest {
		return nil, nil, ErrLagged
	}
	if position == f.end {
		if f.wake == nil {
			f.wake = make(chan struct{})
		}
		return nil, f.wake, nil
	}
	if position == f.end-uint64(len(f.last)) {
		return f.last, nil, nil
	}
	changes := make([]Change, 0, f.end-position)
	for ; position < f.end; position++ {
		changes = append(changes, f.ring[position%feedSize])
	}
	return changes, nil, nil
}

// Subscription follows the changes after a snapshot. It is for one goroutine and holds nothing that would have to be
// closed.
type Subscription struct {
	feed     *feed
	position uint64
}

// Subscribe returns the newest state and a subscription to all changes after it.
func (s *Store) Subscribe() (*Snapshot, *Subscription) {
	snapshot := s.Snapshot()
	return snapshot, &Subscription{feed: &s.feed, position: snapshot.position}
}

// Next waits until there are changes and returns all of them, of whole transactions and in their order. They are
// part of the store's newest snapshot by then. Others may have the same list: it must not be modified. Changes that are
// there already are returned even if ctx has ended. Once it returned [ErrLagged] it will always do so.
func (s *Subscription) Next(ctx context.Context) ([]Change, error) {
	for {
		changes, wake, err := s.feed.after(s.position)
		if err != nil {
			return nil, err
		}
		if len(changes) > 0 {
			s.position += uint64(len(changes))
			return changes, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Newest returns the newest state and all changes that led to it since those that were returned before, without
// waiting. Once it returned [ErrLagged] it will always do so.
func (s *Subscription) Newest() (*Snapshot, []Change, error) {
	s.feed.mu.Lock()
	snapshot := s.feed.newest.Load()
	s.feed.mu.Unlock()
	if snapshot.position == s.position {
		return snapshot, nil, nil
	}
	changes, _, err := s.feed.after(s.position)
	if err != nil {
		return nil, nil, err
	}
	changes = changes[:snapshot.position-s.position] // there may be more by now
	s.position = snapshot.position
	return snapshot, changes, nil
}
