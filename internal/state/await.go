package state

import "context"

// Await waits until the state includes the entry with an index, and returns the newest snapshot then. Entries whose
// transactions were all refused count as well, though nobody who follows the changes hears of them.
func (s *Store) Await(ctx context.Context, index uint64) (*Snapshot, error) {
	for {
		snapshot, wake := s.feed.look()
		if snapshot.Index() >= index {
			return snapshot, nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// look returns the newest snapshot and what is closed when there is another one.
func (f *feed) look() (*Snapshot, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	return f.newest.Load(), f.wake
}
