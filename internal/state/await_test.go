package state_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cloudless/cloudless/internal/state"
)

// Await returns even if the entry changed nothing.
func TestAwaitReturnsAfterARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := state.New()
		create(t, store, 1, workload("w", "web"))
		before, feed := store.Subscribe()
		var reached *state.Snapshot
		go func() { reached, _ = store.Await(t.Context(), 2) }()
		ctx, cancel := context.WithCancelCause(t.Context())
		var changes []state.Change
		var ended error
		go func() { changes, ended = feed.Next(ctx) }()
		synctest.Wait()
		if reached != nil {
			t.Fatalf("it did not wait: the state is at %d", reached.Index())
		}
		var b state.Batch
		b.Create(workload("w", "web"))
		if _, err := store.Apply(2, b.Transaction(noon)); err == nil {
			t.Fatal("the second of a name was accepted")
		}
		synctest.Wait()
		if reached == nil || reached.Index() != 2 || before.Index() != 1 {
			t.Errorf("after the refusal there is %v", reached)
		}
		// Subscribers see no change.
		stop := errors.New("stop")
		cancel(stop)
		synctest.Wait()
		if len(changes) != 0 || !errors.Is(ended, stop) {
			t.Errorf("a subscriber got %v, %v", changes, ended)
		}
	})
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := state.New().Await(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
}
