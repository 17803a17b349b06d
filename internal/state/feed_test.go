package state_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cloudless/cloudless/internal/state"
)

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := state.New()
		_, feed := store.Subscribe()
		got := make(chan []state.Change)
		go func() {
			changes, err := feed.Next(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- changes
		}()
		synctest.Wait()
		create(t, store, 1, workload("u1", "web"), workload("u2", "api"))
		if changes := <-got; len(changes) != 2 || changes[1].Kind != state.KindWorkload || changes[1].Old != nil {
			t.Fatalf("got %v", changes)
		}
	})
}

func TestNextEndsWithItsContext(t *testing.T) {
	reason := errors.New("no more interest")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	_, feed := state.New().Subscribe()
	if _, err := feed.Next(ctx); !errors.Is(err, reason) {
		t.Fatalf("got %v", err)
	}
}

// Whenever a subscriber starts, its snapshot and its changes together are complete.
func TestSubscribersMissNothing(t *testing.T) {
	const total = 500
	store := state.New()
	var subscribers sync.WaitGroup
	for range 4 {
		subscribers.Go(func() {
			for range 20 {
				snapshot, feed := store.Subscribe()
				for seen := snapshot.Count(state.KindWorkload); seen < total; {
					changes, err := feed.Next(t.Context())
					if err != nil {
						t.Error(err)
						return
					}
					for _, change := range changes {
						if want := fmt.Sprintf("u%d", seen); change.New.GetMetadata().GetUid() != want {
							t.Errorf("got %v, want %s", change.New, want)
							return
						}
						seen++
					}
				}
			}
		})
	}
	for i := range total {
		create(t, store, uint64(i+1), workload(fmt.Sprintf("u%d", i), fmt.Sprintf("w%d", i)))
	}
	subscribers.Wait()
}

func TestSlowSubscriberGetsErrLagged(t *testing.T) {
	store := state.New()
	_, slow := store.Subscribe()
	index := uint64(0)
	put := func(times int) {
		var b state.Batch
		for range times {
			b.Put(workload("u1", "web"))
		}
		index++
		if _, err := store.Apply(index, b.Transaction(noon)); err != nil {
			t.Fatal(err)
		}
	}
	put(state.FeedSize)
	_, quick := store.Subscribe()
	put(1)
	if _, err := slow.Next(t.Context()); !errors.Is(err, state.ErrLagged) {
		t.Fatalf("got %v", err)
	}
	if changes, err := quick.Next(t.Context()); err != nil || len(changes) != 1 {
		t.Fatalf("the quick one got %v, %v", changes, err)
	}
}

func TestRestoreEndsSubscriptions(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u1", "web"))
	saved := save(t, store.Snapshot())
	_, before := store.Subscribe()
	if err := store.Restore(bytes.NewReader(saved)); err != nil {
		t.Fatal(err)
	}
	if _, err := before.Next(t.Context()); !errors.Is(err, state.ErrLagged) {
		t.Fatalf("got %v", err)
	}
	_, after := store.Subscribe()
	create(t, store, 2, workload("u2", "api"))
	if changes, err := after.Next(t.Context()); err != nil || len(changes) != 1 {
		t.Fatalf("got %v, %v", changes, err)
	}
}

// Newest returns exactly the changes that led to its snapshot.
func TestNewestComesWithItsChanges(t *testing.T) {
	store := state.New()
	snap, feed := store.Subscribe()
	if got, changes, err := feed.Newest(); got != snap || len(changes) != 0 || err != nil {
		t.Fatalf("nothing has changed, but there are %v (%v)", changes, err)
	}
	create(t, store, 1, workload("u1", "web"), workload("u2", "api"))
	create(t, store, 2, workload("u3", "db"))
	now, changes, err := feed.Newest()
	if err != nil || len(changes) != 3 || now.Count(state.KindWorkload) != 3 {
		t.Fatalf("%d changes lead to %d workloads (%v)", len(changes), now.Count(state.KindWorkload), err)
	}
	if again, changes, err := feed.Newest(); again != now || len(changes) != 0 || err != nil {
		t.Errorf("they come twice: %v (%v)", changes, err)
	}
}
