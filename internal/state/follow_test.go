package state_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// books are what a test derives from the news: names of workloads by uid.
type books map[string]string

func (b books) take(news state.News) {
	if news.Resync {
		clear(b)
		for w := range news.Snapshot.Workloads("", "") {
			b[w.GetMetadata().GetUid()] = w.GetMetadata().GetName()
		}
	}
	for _, c := range news.Changes {
		if c.New == nil {
			delete(b, c.Old.GetMetadata().GetUid())
		} else {
			b[c.New.GetMetadata().GetUid()] = c.New.(*v1.Workload).GetMetadata().GetName()
		}
	}
}

// Whatever happens to the state, a follower that has read its news knows all of it.
func TestFollowerMissesNothing(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel() // news that is already there is returned nevertheless
	rapid.Check(t, func(t *rapid.T) {
		store, index := state.New(), uint64(0)
		follower, kept := store.Follow(), books{}
		apply := func(b *state.Batch) {
			index++
			if _, err := store.Apply(index, b.Transaction(noon)); err != nil {
				t.Fatal(err)
			}
		}
		uid := rapid.Map(rapid.IntRange(0, 4), func(i int) string { return fmt.Sprintf("u%d", i) })
		saved := save(t, store.Snapshot())
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				var b state.Batch
				id := uid.Draw(t, "uid")
				b.Put(workload(id, id+rapid.StringMatching("[a-z]{3}").Draw(t, "name")))
				apply(&b)
			},
			"delete": func(t *rapid.T) {
				var b state.Batch
				b.Delete(state.KindWorkload, uid.Draw(t, "uid"))
				apply(&b)
			},
			"save": func(t *rapid.T) { saved = save(t, store.Snapshot()) },
			"restore": func(t *rapid.T) {
				if err := store.Restore(bytes.NewReader(saved)); err != nil {
					t.Fatal(err)
				}
				index = store.Snapshot().Index()
			},
			"wait": func(t *rapid.T) {
				for {
					news, err := follower.Next(ended)
					if errors.Is(err, context.Canceled) {
						break
					}
					kept.take(news)
				}
				wantBooks(t, kept, store)
			},
			"look": func(t *rapid.T) {
				kept.take(follower.Newest())
				wantBooks(t, kept, store)
			},
		})
	})
}

func wantBooks(t *rapid.T, kept books, store *state.Store) {
	want := books{}
	want.take(state.News{Resync: true, Snapshot: store.Snapshot()})
	if !maps.Equal(kept, want) {
		t.Fatalf("the follower knows %v, and there are %v", kept, want)
	}
}

// The first news is the whole state, without waiting.
func TestFollowerBeginsWithTheNewestState(t *testing.T) {
	store := state.New()
	follower := store.Follow()
	create(t, store, 1, workload("u1", "web"))
	news, err := follower.Next(t.Context())
	if err != nil || !news.Resync || news.Snapshot.Count(state.KindWorkload) != 1 {
		t.Fatalf("the first news is %+v, %v", news, err)
	}
	create(t, store, 2, workload("u2", "api"))
	if news, err := follower.Next(t.Context()); err != nil || news.Resync || len(news.Changes) != 1 || news.Snapshot.Count(state.KindWorkload) != 2 {
		t.Fatalf("the second news is %+v, %v", news, err)
	}
}

func TestSlowFollowerResynchronizes(t *testing.T) {
	store := state.New()
	follower := store.Follow()
	follower.Newest()
	var b state.Batch
	for range state.FeedSize + 1 {
		b.Put(workload("u1", "web"))
	}
	if _, err := store.Apply(1, b.Transaction(noon)); err != nil {
		t.Fatal(err)
	}
	news, err := follower.Next(t.Context())
	if err != nil || !news.Resync || len(news.Changes) > 0 || news.Snapshot.Workload("u1") == nil {
		t.Fatalf("got %d changes, resync %t, %v", len(news.Changes), news.Resync, err)
	}
	create(t, store, 2, workload("u2", "api"))
	if news := follower.Newest(); news.Resync || len(news.Changes) != 1 {
		t.Errorf("the follower does not resume: %d changes, resync %t", len(news.Changes), news.Resync)
	}
}
