package state_test

import (
	"bytes"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/internal/state"
)

func saved(t *testing.T, snap *state.Snapshot) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := snap.Save(&out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestForkDoesNotChangeTheStore(t *testing.T) {
	store := state.New()
	create(t, store, 7, workload("u1", "web"), workload("u2", "db"))
	before := saved(t, store.Snapshot())
	fork := store.Fork()
	other := store.Fork()
	if !bytes.Equal(saved(t, fork.Snapshot()), before) {
		t.Fatal("a fork does not begin as the state that it was made of")
	}

	edited := proto.CloneOf(fork.Snapshot().Workload("u1"))
	edited.Spec.Image = "hello:2"
	var b state.Batch
	b.Update(edited, 7)
	b.DeleteVersion(state.KindWorkload, "u2", 7)
	b.Create(workload("u3", "cache"))
	changes, err := fork.Apply(b.Transaction(noon))
	if err != nil {
		t.Fatal(err)
	}
	if len(changes) != 3 || changes[0].Old.GetMetadata().GetVersion() != 7 || changes[1].New != nil || changes[2].Old != nil {
		t.Errorf("the fork reports %v", changes)
	}
	snap := fork.Snapshot()
	if snap.Workload("u1").GetSpec().GetImage() != "hello:2" || snap.Workload("u2") != nil || snap.WorkloadByName("default", "cache") == nil ||
		snap.Count(state.KindWorkload) != 2 || snap.Index() != 8 {
		t.Error("the fork has not made the changes")
	}
	for name, same := range map[string]*state.Snapshot{"the store": store.Snapshot(), "another fork": other.Snapshot()} {
		if !bytes.Equal(saved(t, same), before) {
			t.Errorf("a fork has changed %s", name)
		}
	}

	// Later changes of the store are not visible in the fork.
	create(t, store, 8, workload("u4", "late"))
	if fork.Snapshot().Workload("u4") != nil {
		t.Error("the fork follows the store")
	}
}

func TestForkRefusesLikeTheStore(t *testing.T) {
	store := state.New()
	create(t, store, 7, workload("u1", "web"))
	fork := store.Fork()
	before := saved(t, fork.Snapshot())
	var b state.Batch
	b.Create(workload("u2", "db"))
	b.Update(workload("u1", "web"), 6)
	_, err := fork.Apply(b.Transaction(noon))
	if _, ok := errors.AsType[*state.ConflictError](err); !ok {
		t.Fatalf("refused by %v, want a conflict", err)
	}
	if !bytes.Equal(saved(t, fork.Snapshot()), before) {
		t.Error("a refused transaction has left something in the fork")
	}
	var good state.Batch
	good.Create(workload("u2", "db"))
	if _, err := fork.Apply(good.Transaction(noon)); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
}
