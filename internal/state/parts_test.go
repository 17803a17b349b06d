package state_test

import (
	"testing"

	"github.com/cloudless/cloudless/internal/state"
)

// A part with a refused change is left out as a whole, without affecting the rest. If a change outside of parts is
// refused, so is the whole transaction.
func TestPartsAreLeftOutIndependently(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u1", "a"), workload("u2", "b"))
	result, err := store.Apply(2, transaction(func(b *state.Batch) {
		b.Create(workload("u3", "c"))
		b.BeginPart()
		b.Create(workload("u4", "d"))
		b.Check(state.KindWorkload, "u1", 9) // it is at 1
		b.Create(workload("u5", "e"))
		b.BeginPart()
		b.Check(state.KindWorkload, "u2", 1)
		b.Create(workload("u6", "d")) // the name is still free
		b.EndPart()
		b.Create(workload("u7", "f"))
	}))
	if err != nil {
		t.Fatal(err)
	}
	if len(result.LeftOut) != 1 || !state.MovedOn(result.LeftOut[1]) {
		t.Errorf("left out: %v", result.LeftOut)
	}
	for i, there := range []bool{true, false, false, false, true, true, true} {
		if (result.Objects[i] != nil) != there {
			t.Errorf("change %d did %v", i, result.Objects[i])
		}
	}
	for name, uid := range map[string]string{"c": "u3", "d": "u6", "e": "", "f": "u7"} {
		if got := store.Snapshot().WorkloadByName("default", name).GetMetadata().GetUid(); got != uid {
			t.Errorf("%s is the name of %q, want %q", name, got, uid)
		}
	}

	index := store.Snapshot().Index()
	if _, err := store.Apply(3, transaction(func(b *state.Batch) {
		b.BeginPart()
		b.Create(workload("u8", "g"))
		b.EndPart()
		b.Check(state.KindWorkload, "u1", 9)
	})); !state.MovedOn(err) || store.Snapshot().WorkloadByName("default", "g") != nil || index != 2 {
		t.Errorf("without what all need: %v", err)
	}
}

// The changes of a part are adjacent.
func TestPartCannotResume(t *testing.T) {
	tx := transaction(func(b *state.Batch) {
		b.BeginPart()
		b.Create(workload("u1", "a"))
		b.BeginPart()
		b.Create(workload("u2", "b"))
	})
	if err := state.Validate(tx); err != nil {
		t.Fatal(err)
	}
	tx.Changes[0].Part = 3
	if err := state.Validate(tx); err == nil {
		t.Error("a part that begins again is taken")
	}
}
