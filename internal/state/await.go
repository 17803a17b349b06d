package state

import "context"

// Await waits until the entry with an index has been applied and returns the newest snapshot. It also returns if all
// transactions of that entry were refused, which a [Subscription] does not report.
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

// look returns the newest snapshot and a channel that is closed when there is a newer one.
func (f *feed) look() (*Snapshot, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	return f.newest.Load(), f.wake
}
