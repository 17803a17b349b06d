package peering

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// A server that moved while changes were lost is noticed by comparing the states.
func TestMoveThatWasMissedIsNoticed(t *testing.T) {
	t.Parallel()
	at := func(addresses ...string) *state.Snapshot {
		store := state.New()
		var b state.Batch
		for i, address := range addresses {
			uid := fmt.Sprintf("s-%d", i)
			b.Create(&v1.Server{Metadata: &v1.Metadata{Uid: uid, Name: uid}, Spec: &v1.ServerSpec{Address: address}})
		}
		if _, err := store.Apply(1, b.Transaction(time.Unix(1_700_000_000, 0))); err != nil {
			t.Fatal(err)
		}
		return store.Snapshot()
	}
	before := at("10.0.0.1:7700", "10.0.0.2:7700")
	for want, after := range map[bool]*state.Snapshot{
		false: at("10.0.0.1:7700", "10.0.0.2:7700", "10.0.0.3:7700"), // a new one has not moved
		true:  at("10.0.0.1:7700", "10.0.0.9:7700"),
	} {
		p := New(state.New(), slog.New(slog.DiscardHandler))
		p.noteMoves(before, state.News{Resync: true, Snapshot: after})
		if got := len(p.moved) == 1; got != want {
			t.Errorf("a move is noticed: %t, want %t", got, want)
		}
	}
}
