package state

import (
	"context"
	"errors"
)

// News is what has changed since a follower looked last.
type News struct {
	// Anew says that changes were lost, as at the beginning: what the follower has made of earlier ones must be made
	// anew from the snapshot.
	Anew bool
	// Changes are those since the last news, of whole transactions and in their order. Others may have the same list:
	// it must not be modified.
	Changes []Change
	// Snapshot is a state that has all of this.
	Snapshot *Snapshot
}

// Follower follows a store, however far it falls behind. It is for one goroutine and holds nothing that would have to
// be closed.
type Follower struct {
	store *Store
	feed  *Subscription // nil before the first news
}

// Follow returns a follower, whose first news is the newest state by then.
func (s *Store) Follow() *Follower { return &Follower{store: s} }

// Next waits until there is news. News that is there already is returned even if ctx has ended. The snapshot may be
// newer than the changes.
func (f *Follower) Next(ctx context.Context) (News, error) {
	if f.feed == nil {
		return f.anew(), nil
	}
	changes, err := f.feed.Next(ctx)
	if errors.Is(err, ErrLagged) {
		return f.anew(), nil
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
	return f.anew()
}

func (f *Follower) anew() News {
	var snap *Snapshot
	snap, f.feed = f.store.Subscribe()
	return News{Anew: true, Snapshot: snap}
}
