package state_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

func transaction(change func(*state.Batch)) *statev1.Transaction {
	var b state.Batch
	change(&b)
	return b.Transaction(noon)
}

// Transactions that are applied together see each other's changes, including names that became free. Refused ones
// leave no trace.
func TestTransactionsOfAGroupSeeEachOther(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u1", "a"), workload("u2", "b"))
	outcomes := store.ApplyAll([]state.Entry{
		{Index: 2, Transaction: transaction(func(b *state.Batch) { b.Update(workload("u1", "c"), 1) })},
		{Index: 3, Transaction: transaction(func(b *state.Batch) { b.Put(workload("u3", "a")); b.Put(workload("u4", "b")) })},
		{Index: 4, Transaction: transaction(func(b *state.Batch) { b.Update(workload("u2", "a"), 1) })},
		{Index: 5, Transaction: transaction(func(b *state.Batch) { b.Update(workload("u1", "b"), 2) })},
		{Index: 6, Transaction: transaction(func(b *state.Batch) { b.Create(workload("u5", "c")); b.Delete(state.KindWorkload, "u2") })},
	})
	for i, refused := range []bool{false, true, false, false, false} {
		if (outcomes[i].Err != nil) != refused {
			t.Errorf("transaction %d: %v", i, outcomes[i].Err)
		}
	}
	snap := store.Snapshot()
	for name, uid := range map[string]string{"a": "", "b": "u1", "c": "u5"} {
		if got := snap.WorkloadByName("default", name).GetMetadata().GetUid(); got != uid {
			t.Errorf("%s is the name of %q, want %q", name, got, uid)
		}
	}
	if snap.Count(state.KindWorkload) != 2 || snap.Workload("u2") != nil || snap.Workload("u3") != nil {
		t.Errorf("there are %d workloads", snap.Count(state.KindWorkload))
	}
}

// Two objects can swap their names in one transaction.
func TestObjectsCanSwapNames(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u1", "a"), workload("u2", "b"))
	if _, err := store.Apply(2, transaction(func(b *state.Batch) {
		b.Put(workload("u1", "between"))
		b.Put(workload("u2", "a"))
		b.Put(workload("u1", "b"))
	})); err != nil {
		t.Fatal(err)
	}
	for name, uid := range map[string]string{"a": "u2", "b": "u1", "between": ""} {
		if got := store.Snapshot().WorkloadByName("default", name).GetMetadata().GetUid(); got != uid {
			t.Errorf("%s is the name of %q, want %q", name, got, uid)
		}
	}
}

// Restoring works for tables with several levels of nodes.
func TestRestoreOfManyObjects(t *testing.T) {
	const many = 2051
	store := state.New()
	var b state.Batch
	for i := range many {
		b.Create(workload(fmt.Sprintf("u%05d", i), fmt.Sprintf("w%d", i)))
	}
	if _, err := store.Apply(1, b.Transaction(noon)); err != nil {
		t.Fatal(err)
	}
	saved := save(t, store.Snapshot())
	restored := state.New()
	if err := restored.Restore(bytes.NewReader(saved)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(save(t, restored.Snapshot()), saved) {
		t.Fatal("what was restored is saved differently")
	}
	if restored.Snapshot().Count(state.KindWorkload) != many {
		t.Fatalf("%d workloads came back", restored.Snapshot().Count(state.KindWorkload))
	}
}

// BenchmarkApplyAll measures a group of new workloads, each with a revision and an event.
func BenchmarkApplyAll(b *testing.B) {
	for _, size := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("groups of %d", size), func(b *testing.B) {
			store, index := state.New(), uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				entries := make([]state.Entry, size)
				for i := range entries {
					index++
					entries[i] = state.Entry{Index: index, Transaction: newWorkload(index)}
				}
				b.StartTimer()
				store.ApplyAll(entries)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/workload")
		})
	}
}

func newWorkload(n uint64) *statev1.Transaction {
	uid := func(kind byte) string { return fmt.Sprintf("%012x-7%03x-%c", n/4096, n%4096, kind) }
	return transaction(func(b *state.Batch) {
		w := workload(uid('w'), fmt.Sprintf("w%d", n))
		b.Create(w)
		b.Create(&v1.Revision{Metadata: &v1.Metadata{Uid: uid('r')}, Spec: &v1.RevisionSpec{WorkloadUid: uid('w'), Number: 1}})
		b.Create(state.NewEvent(uid('e'), noon.Add(time.Duration(n)), w, state.SeverityInfo, "Created", "", ""))
	})
}

// Transactions of one log entry share its index. A later entry cannot have it too.
func TestTransactionsOfOneEntryShareItsIndex(t *testing.T) {
	store := state.New()
	create(t, store, 1, workload("u1", "a"))
	outcomes := store.ApplyAll([]state.Entry{
		{Index: 2, Transaction: transaction(func(b *state.Batch) { b.Create(workload("u2", "b")) })},
		{Index: 2, Transaction: transaction(func(b *state.Batch) { b.Update(workload("u1", "c"), 1) })},
		{Index: 2, Transaction: transaction(func(b *state.Batch) { b.Update(workload("u1", "d"), 1) })},
	})
	for i, refused := range []bool{false, false, true} {
		if (outcomes[i].Err != nil) != refused {
			t.Errorf("transaction %d: %v", i, outcomes[i].Err)
		}
	}
	if w := store.Snapshot().Workload("u1"); w.GetMetadata().GetVersion() != 2 || w.GetMetadata().GetName() != "c" {
		t.Errorf("the workload is %v", w)
	}
	if _, err := store.Apply(2, transaction(func(b *state.Batch) { b.Create(workload("u3", "e")) })); err == nil {
		t.Error("an index was used again")
	}
}

// BenchmarkReports measures groups of reports about replicas of many workloads.
func BenchmarkReports(b *testing.B) {
	const workloads, nodes, each, group = 100, 500, 1000, 192
	store, index := state.New(), uint64(0)
	apply := func(of int, put func(batch *state.Batch, i int)) {
		index++
		store.ApplyAll([]state.Entry{{Index: index, Transaction: transaction(func(batch *state.Batch) {
			for i := range of {
				put(batch, i)
			}
		})}})
	}
	uid := func(w, i int) string { return fmt.Sprintf("0197%04d-%04d-7000-8000-000000000000", w, i) }
	for w := range workloads {
		apply(each, func(batch *state.Batch, i int) {
			batch.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: uid(w, i), Name: fmt.Sprintf("w%d-%08d", w, (i*7919)%each), Namespace: "default"},
				Spec:     &v1.ReplicaSpec{WorkloadUid: fmt.Sprintf("w%04d", w), NodeUid: fmt.Sprintf("n%04d", (w*31+i*17)%nodes)},
			})
		})
	}
	snap := store.Snapshot()
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		apply(group, func(batch *state.Batch, i int) {
			at := n*group + i
			old := snap.Replica(uid(at/each%workloads, at%each))
			batch.Put(&v1.Replica{Metadata: old.GetMetadata(), Spec: old.GetSpec(), Status: &v1.ReplicaStatus{Phase: "running"}})
		})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*group), "ns/replica")
}
