package state_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func workload(uid, name string) *v1.Workload {
	return &v1.Workload{
		Metadata: &v1.Metadata{Uid: uid, Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec:     &v1.WorkloadSpec{Image: "hello:1", Args: []string{"--greeting", "hi"}},
	}
}

// create applies a transaction that creates the objects.
func create(t testing.TB, store *state.Store, index uint64, objects ...state.Object) state.Result {
	t.Helper()
	var b state.Batch
	for _, object := range objects {
		b.Create(object)
	}
	result, err := store.Apply(index, b.Transaction(noon))
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestVersionsAndTimes(t *testing.T) {
	store := state.New()
	created := create(t, store, 7, workload("u1", "web")).Objects[0].GetMetadata()
	if created.GetVersion() != 7 || !created.GetCreateTime().AsTime().Equal(noon) || !created.GetUpdateTime().AsTime().Equal(noon) {
		t.Fatalf("created with %v", created)
	}

	changed := proto.CloneOf(store.Snapshot().Workload("u1"))
	changed.Spec.Image = "hello:2"
	changed.Metadata.CreateTime = nil // what a caller sends here is ignored
	var b state.Batch
	b.Update(changed, 7)
	later := noon.Add(time.Hour)
	result, err := store.Apply(9, b.Transaction(later))
	if err != nil {
		t.Fatal(err)
	}
	updated := store.Snapshot().WorkloadByName("default", "web").GetMetadata()
	if updated.GetVersion() != 9 || !updated.GetCreateTime().AsTime().Equal(noon) || !updated.GetUpdateTime().AsTime().Equal(later) {
		t.Fatalf("updated to %v", updated)
	}
	if result.Index != 9 || result.Objects[0] != state.Object(store.Snapshot().Workload("u1")) {
		t.Fatal("the result is not what is stored")
	}
}

func TestRefusalsNameObjectReasonAndWayOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*state.Batch)
		want   string
	}{
		{
			"stale version", func(b *state.Batch) { b.Update(workload("u1", "web"), 3) },
			`workload "default/web" has changed: you named version 3, it is at version 5 now; read it again and repeat the change`,
		},
		{
			"name is taken", func(b *state.Batch) { b.Create(workload("u2", "web")) },
			`workload "default/web" exists already (uid u1): choose another name, or update or delete that one`,
		},
		{
			"renamed onto another", func(b *state.Batch) { b.Create(workload("u2", "api")); b.Update(workload("u1", "api"), 5) },
			`workload "default/api" exists already (uid u2): choose another name, or update or delete that one`,
		},
		{
			"deleted meanwhile", func(b *state.Batch) { b.Update(workload("u3", "gone"), 5) },
			`workload "default/gone" does not exist: it may have been deleted; list what is there, or create it`,
		},
		{
			"check fails", func(b *state.Batch) { b.Create(workload("u4", "new")); b.Check(state.KindNode, "n1", 5) },
			`node n1 does not exist: it may have been deleted; list what is there, or create it`,
		},
		{
			"kind that is not stored", func(b *state.Batch) { b.Put(&v1.Image{Metadata: &v1.Metadata{Uid: "i", Name: "i"}}) },
			`change 0 of the transaction puts no object of a known kind`,
		},
		{"nothing at all", func(*state.Batch) {}, `the transaction has no changes`},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := state.New()
			create(t, store, 5, workload("u1", "web"))
			_, feed := store.Subscribe()
			var b state.Batch
			c.change(&b)
			_, err := store.Apply(6, b.Transaction(noon))
			if err == nil || err.Error() != c.want {
				t.Fatalf("got  %v\nwant %s", err, c.want)
			}
			if _, invalid := errors.AsType[*state.InvalidError](err); !invalid && store.Snapshot().Index() != 6 {
				t.Fatal("a refusal is an outcome: the index must move on")
			}
			if n := store.Snapshot().Count(state.KindWorkload); n != 1 {
				t.Fatalf("%d workloads after a refusal", n)
			}
			create(t, store, 7, workload("u9", "last"))
			changes, err := feed.Next(t.Context())
			if err != nil || len(changes) != 1 || changes[0].New.GetMetadata().GetUid() != "u9" {
				t.Fatalf("the feed shows parts of a refused transaction: %v, %v", changes, err)
			}
		})
	}
}

func TestThereIsAtMostOneCluster(t *testing.T) {
	store := state.New()
	create(t, store, 1, &v1.Cluster{Metadata: &v1.Metadata{Uid: "c1", Name: "home"}})
	var b state.Batch
	b.Put(&v1.Cluster{Metadata: &v1.Metadata{Uid: "c2", Name: "other"}})
	_, err := store.Apply(2, b.Transaction(noon))
	if taken, ok := errors.AsType[*state.ExistsError](err); !ok || taken.UID != "c1" {
		t.Fatalf("got %v", err)
	}
	if store.Snapshot().Cluster().GetMetadata().GetUid() != "c1" {
		t.Fatal("the cluster was replaced")
	}
}

func TestNameIsFreeAfterDeletionInTheSameTransaction(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u1", "web"))
	var b state.Batch
	b.DeleteVersion(state.KindWorkload, "u1", 1)
	b.Create(workload("u2", "web"))
	if _, err := store.Apply(2, b.Transaction(noon)); err != nil {
		t.Fatal(err)
	}
	if got := store.Snapshot().WorkloadByName("default", "web").GetMetadata().GetUid(); got != "u2" {
		t.Fatalf("web is %s", got)
	}
}

func TestRevisionsAreOrderedByNumber(t *testing.T) {
	store := state.New()
	for i, number := range []uint64{300, 2, 70_000, 1} {
		create(t, store, uint64(i+1), &v1.Revision{
			Metadata: &v1.Metadata{Uid: fmt.Sprintf("r%d", i)}, Spec: &v1.RevisionSpec{WorkloadUid: "u1", Number: number},
		})
	}
	var numbers []uint64
	for revision := range store.Snapshot().RevisionsOf("u1") {
		numbers = append(numbers, revision.GetSpec().GetNumber())
	}
	if !slices.Equal(numbers, []uint64{1, 2, 300, 70_000}) {
		t.Fatal(numbers)
	}
}

func TestIndexCannotBeReused(t *testing.T) {
	store := state.New()
	create(t, store, 5, workload("u1", "web"))
	var b state.Batch
	b.Create(workload("u2", "api"))
	_, err := store.Apply(5, b.Transaction(noon))
	if _, ok := errors.AsType[*state.InvalidError](err); !ok {
		t.Fatalf("got %v", err)
	}
}

// Entries of a newer release must not be skipped.
func TestApplyStopsAtAnInvalidEntry(t *testing.T) {
	store := state.New()
	var good, newer, late state.Batch
	good.Create(workload("u1", "a"))
	newer.Create(workload("u2", "b"))
	late.Create(workload("u3", "c"))
	unknown := newer.Transaction(noon)
	unknown.Changes[0].ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 0}) // field 1023, empty
	outcomes := store.ApplyAll([]state.Entry{
		{Index: 1, Transaction: good.Transaction(noon)}, {Index: 2, Transaction: unknown}, {Index: 3, Transaction: late.Transaction(noon)},
	})
	if outcomes[0].Err != nil {
		t.Fatal(outcomes[0].Err)
	}
	for _, outcome := range outcomes[1:] {
		if _, ok := errors.AsType[*state.InvalidError](outcome.Err); !ok {
			t.Fatalf("got %v", outcome.Err)
		}
	}
	if s := store.Snapshot(); s.Index() != 1 || s.Count(state.KindWorkload) != 1 {
		t.Fatalf("%d workloads at index %d", s.Count(state.KindWorkload), s.Index())
	}
}

// Readers iterate over snapshots while a writer applies transactions: run it with -race.
func TestReadersAndWriterDoNotInterfere(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u0", "w0"))
	written := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				snapshot := store.Snapshot()
				listed := 0
				for w := range snapshot.Workloads("default", "") {
					if w.GetMetadata().GetVersion() > snapshot.Index() {
						t.Errorf("a snapshot at %d has the version %d", snapshot.Index(), w.GetMetadata().GetVersion())
					}
					listed++
				}
				if listed != snapshot.Count(state.KindWorkload) || snapshot.Workload("u0") == nil {
					t.Errorf("%d listed, %d counted", listed, snapshot.Count(state.KindWorkload))
				}
				select {
				case <-written:
					return
				default:
				}
			}
		})
	}
	for i := range 300 {
		create(t, store, uint64(i+2), workload(fmt.Sprintf("u%d", i+1), fmt.Sprintf("w%d", i+1)))
	}
	close(written)
	readers.Wait()
}

func BenchmarkApply(b *testing.B) {
	store := state.New()
	for i := 0; b.Loop(); i++ {
		var batch state.Batch
		batch.Create(workload(fmt.Sprintf("0197-%08d", i), fmt.Sprintf("web-%08d", i)))
		if _, err := store.Apply(uint64(i+1), batch.Transaction(noon)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
}

// A generation changes with every change to an object of its kind, also in a fork, and with nothing else.
func TestGenerationChangesOnlyWithItsKind(t *testing.T) {
	store, index := state.New(), uint64(0)
	do := func(add func(*state.Batch)) state.Generation {
		t.Helper()
		index++
		var b state.Batch
		add(&b)
		if _, err := store.Apply(index, b.Transaction(noon)); err != nil {
			t.Fatal(err)
		}
		return store.Snapshot().Generation(state.KindNode)
	}
	node := func(state string) *v1.Node {
		return &v1.Node{Metadata: &v1.Metadata{Uid: "n", Name: "n"}, Status: &v1.NodeStatus{State: state}}
	}
	created := do(func(b *state.Batch) { b.Create(node("ready")) })
	if after := do(func(b *state.Batch) { b.Create(workload("web", "web")) }); after != created {
		t.Error("a workload makes other nodes")
	}
	seen := map[state.Generation]bool{created: true}
	for _, is := range []string{"offline", "ready", "offline"} {
		changed := do(func(b *state.Batch) { b.Put(node(is)) })
		if seen[changed] {
			t.Errorf("when the node is %s the nodes are as before", is)
		}
		seen[changed] = true
	}
	var tried state.Batch
	tried.Put(node("ready"))
	fork := store.Fork()
	if _, err := fork.Apply(tried.Transaction(noon)); err != nil || seen[fork.Snapshot().Generation(state.KindNode)] {
		t.Errorf("where it is only tried that the node is ready the nodes are as before (%v)", err)
	}
	if gone := do(func(b *state.Batch) { b.Delete(state.KindNode, "n") }); seen[gone] {
		t.Error("without the node the nodes are as before")
	}
}
