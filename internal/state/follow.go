package state

import (
	"context"
	"errors"
)

// News is what has changed since a follower last asked.
type News struct {
	// Resync means that changes were lost, or that this is the first news: everything that the follower derived from
	// earlier news must be rebuilt from the snapshot.
	Resync bool
	// Changes are all changes since the last news in order, never a part of a transaction. The list is shared and must
	// not be modified.
	Changes []Change
	// Snapshot includes the changes.
	Snapshot *Snapshot
}

// Follower follows a store and resynchronizes when it lags. It is for one goroutine and need not be closed.
type Follower struct {
	store *Store
	feed  *Subscription // nil until the first news
}

// Follow returns a follower. Its first news is the whole state.
func (s *Store) Follow() *Follower { return &Follower{store: s} }

// Next waits for news. News that is already there is returned even if ctx has ended. The snapshot may be newer than the
// changes.
func (f *Follower) Next(ctx context.Context) (News, error) {
	if f.feed == nil {
		return f.resync(), nil
	}
	changes, err := f.feed.Next(ctx)
	if errors.Is(err, ErrLagged) {
		return f.resync(), nil
	}
	if err != nil {
		return News{}, err
	}
	return News{Changes: changes, Snapshot: f.store.Snapshot()}, nil
}

// Newest returns the newest state and exactly the changes that led to it, without waiting.
func (f *Follower) Newest() News {
	if f.feed != nil {
		if snap, changes, err := f.feed.Newest(); err == nil {
			return News{Changes: changes, Snapshot: snap}
		}
	}
	return f.resync()
}

func (f *Follower) resync() News {
	var snap *Snapshot
	snap, f.feed = f.store.Subscribe()
	return News{Resync: true, Snapshot: snap}
}
