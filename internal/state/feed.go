package state

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// feedSize is how many changes a subscriber may lag behind: about a second at the highest write rate measured.
const feedSize = 1 << 15

// Change is the creation (Old is nil), update or deletion (New is nil) of one object.
type Change struct {
	Kind     Kind
	Old, New Object
}

// feed publishes snapshots and the changes between them. All subscribers share one buffer of the newest changes. A
// subscriber is only a position in it, so it leaves nothing to clean up.
type feed struct {
	newest atomic.Pointer[Snapshot]

	mu     sync.Mutex
	ring   []Change // allocated by the first change
	oldest uint64   // position of the oldest change in the ring
	end    uint64   // position after the newest change
	// last are the changes of the newest snapshot. Subscribers that have seen all earlier ones get them without a copy.
	last []Change
	// wake is closed by the next snapshot. It is nil while no goroutine waits, so that writers pay only for waiters.
	wake chan struct{}
}

// publish publishes the next snapshot and the changes that led to it.
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

// reset publishes a snapshot that is unrelated to earlier ones. All subscribers lag.
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

// after returns the changes after a position or, if there are none, a channel that is closed by the next snapshot.
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

// Subscription follows the changes after a snapshot. It is for one goroutine and need not be closed.
type Subscription struct {
	feed     *feed
	position uint64
}

// Subscribe returns the newest state and a subscription to all changes after it.
func (s *Store) Subscribe() (*Snapshot, *Subscription) {
	snapshot := s.Snapshot()
	return snapshot, &Subscription{feed: &s.feed, position: snapshot.position}
}

// Next waits for changes and returns all of them in order, never a part of a transaction. The store's newest snapshot
// includes them. The list is shared and must not be modified. Changes that are already there are returned even if ctx
// has ended. After [ErrLagged], every call returns it.
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

// Newest returns the newest state and exactly the changes that led to it since the last call, without waiting. After
// [ErrLagged], every call returns it.
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
	changes = changes[:snapshot.position-s.position] // later changes may follow
	s.position = snapshot.position
	return snapshot, changes, nil
}
