package state_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// id is how the model finds an object.
type id struct {
	kind state.Kind
	uid  string
}

// model is the simplest state that is correct: a map that is searched from end to end for every question.
type model map[id]state.Object

// apply does what Store.Apply promises. It returns the model after the transaction, and an error of the right type.
func (m model) apply(index uint64, tx *statev1.Transaction) (model, error) {
	next := maps.Clone(m)
	before, part, leftOut := next, uint32(0), false
	for _, change := range tx.GetChanges() {
		if change.GetPart() != part {
			before, part, leftOut = maps.Clone(next), change.GetPart(), false
		}
		if leftOut {
			continue
		}
		err := next.change(index, tx.GetTime(), change)
		switch {
		case err != nil && part == 0:
			return m, err
		case err != nil:
			next, leftOut = before, true
		}
	}
	return next, nil
}

func (m model) change(index uint64, now *timestamppb.Timestamp, change *statev1.Change) error {
	key := change.GetDelete()
	if key == nil {
		key = change.GetCheck()
	}
	var object state.Object
	if put := change.GetPut(); put != nil {
		object = contentOf(proto.CloneOf(put))
		key = &statev1.Key{Kind: string(state.KindOf(object)), Uid: object.GetMetadata().GetUid()}
	}
	at := id{kind: state.Kind(key.GetKind()), uid: key.GetUid()}
	old := m[at]
	if change.ExpectVersion != nil {
		switch {
		case old == nil && change.GetExpectVersion() != 0:
			return &state.NotFoundError{}
		case old != nil && change.GetExpectVersion() == 0:
			return &state.ExistsError{}
		case old != nil && old.GetMetadata().GetVersion() != change.GetExpectVersion():
			return &state.ConflictError{}
		}
	}
	switch {
	case change.GetDelete() != nil:
		delete(m, at)
		m.mark(index, now, at, old, nil)
	case object != nil:
		for other := range maps.Keys(m) {
			sameName := state.Path(m[other]) == state.Path(object) && object.GetMetadata().GetName() != ""
			onlyOne := at.kind == state.KindCluster || at.kind == state.KindAuthority
			if other.kind == at.kind && other.uid != at.uid && (sameName || onlyOne) {
				return &state.ExistsError{}
			}
		}
		metadata := object.GetMetadata()
		metadata.Version, metadata.CreateTime, metadata.UpdateTime = index, now, now
		if old != nil {
			metadata.CreateTime = old.GetMetadata().GetCreateTime()
		}
		m[at] = object
		m.mark(index, now, at, old, object)
	}
	return nil
}

// mark advances the marks that a change affects.
func (m model) mark(index uint64, now *timestamppb.Timestamp, at id, old, object state.Object) {
	move := func(uid string) {
		moved := &statev1.Mark{Metadata: &v1.Metadata{Uid: uid, Version: index, CreateTime: now, UpdateTime: now}}
		if before := m[id{state.KindMark, uid}]; before != nil {
			moved.Metadata.CreateTime = before.GetMetadata().GetCreateTime()
		}
		m[id{state.KindMark, uid}] = moved
	}
	switch at.kind {
	case state.KindNode:
		if old != nil || object != nil {
			move(state.MarkLayout)
		}
	case state.KindWorkload:
		switch own := (id{state.KindMark, at.uid}); {
		case object != nil && old != nil && !maps.Equal(old.GetMetadata().GetLabels(), object.GetMetadata().GetLabels()):
			somewhere := m.all(state.KindReplica, func(o state.Object) bool {
				r := o.(*v1.Replica)
				return r.GetSpec().GetWorkloadUid() == at.uid && r.GetSpec().GetNodeUid() != "" && r.GetStatus().GetEndTime() == nil
			})
			if len(somewhere) > 0 {
				move(state.MarkLayout)
			}
		case old != nil && object == nil && m[own] != nil:
			delete(m, own)
			move(state.MarkLayout)
		}
	case state.KindReplica:
		before, _ := old.(*v1.Replica)
		after, _ := object.(*v1.Replica)
		was, is := before.GetSpec().GetNodeUid(), after.GetSpec().GetNodeUid()
		if after.GetStatus().GetEndTime() != nil {
			is = ""
		}
		of := before.GetSpec().GetWorkloadUid()
		if was != "" && before.GetStatus().GetEndTime() == nil && was != is && m[id{state.KindWorkload, of}] != nil {
			move(of)
		}
	}
}

// all returns the objects of a kind that meet a condition, sorted by name.
func (m model) all(kind state.Kind, keep func(state.Object) bool) []string {
	var objects []state.Object
	for at, object := range m {
		if at.kind == kind && keep(object) {
			objects = append(objects, object)
		}
	}
	slices.SortFunc(objects, func(a, b state.Object) int {
		return cmp.Or(
			strings.Compare(a.GetMetadata().GetNamespace(), b.GetMetadata().GetNamespace()),
			strings.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()),
		)
	})
	return uidsOf(slices.Values(objects))
}

func contentOf(wrapped *statev1.Object) state.Object {
	field := wrapped.ProtoReflect().WhichOneof(wrapped.ProtoReflect().Descriptor().Oneofs().Get(0))
	return wrapped.ProtoReflect().Get(field).Message().Interface().(state.Object)
}

func uidsOf[T state.Object](objects iter.Seq[T]) []string {
	var uids []string
	for object := range objects {
		uids = append(uids, object.GetMetadata().GetUid())
	}
	return uids
}

// There are so few names that transactions collide.
var (
	someUID       = rapid.SampledFrom([]string{"u1", "u2", "u3", "u4", "u5", "u6"})
	someName      = rapid.SampledFrom([]string{"a", "a-b", "ab", "b", "c"})
	someNamespace = rapid.SampledFrom([]string{"x", "xy", "y"})
)

func drawObject(t *rapid.T) state.Object {
	metadata := &v1.Metadata{
		Uid: someUID.Draw(t, "uid"), Name: someName.Draw(t, "name"),
		Labels: map[string]string{"a": someName.Draw(t, "label"), "b": "1"},
	}
	namespace := someNamespace.Draw(t, "namespace")
	switch rapid.IntRange(0, 9).Draw(t, "kind") {
	case 0:
		return &v1.Cluster{Metadata: metadata}
	case 1:
		return &v1.Node{Metadata: metadata}
	case 2:
		metadata.Name = ""
		return &v1.Event{Metadata: metadata}
	case 3:
		return &statev1.Receipt{Metadata: metadata, ObjectUid: "o"}
	case 4, 5, 6:
		metadata.Namespace = namespace
		return &v1.Workload{Metadata: metadata, Spec: &v1.WorkloadSpec{Image: someName.Draw(t, "image")}}
	default:
		metadata.Namespace = namespace
		return &v1.Replica{Metadata: metadata, Spec: &v1.ReplicaSpec{
			WorkloadUid: someUID.Draw(t, "workload"), NodeUid: rapid.SampledFrom([]string{"", "u1", "u2"}).Draw(t, "node"),
		}, Status: &v1.ReplicaStatus{EndTime: rapid.SampledFrom([]*timestamppb.Timestamp{nil, nil, {Seconds: 1}}).Draw(t, "end")}}
	}
}

// drawVersion draws the right version of an object most of the time.
func (m model) drawVersion(t *rapid.T, at id) uint64 {
	version := uint64(0)
	if object := m[at]; object != nil {
		version = object.GetMetadata().GetVersion()
	}
	return rapid.OneOf(rapid.Just(version), rapid.Just(version), rapid.Uint64Range(0, 20)).Draw(t, "version")
}

func (m model) drawTransaction(t *rapid.T, now time.Time) *statev1.Transaction {
	var b state.Batch
	for range rapid.IntRange(1, 6).Draw(t, "changes") {
		switch rapid.IntRange(0, 4).Draw(t, "part") {
		case 0:
			b.BeginPart()
		case 1:
			b.EndPart()
		}
		object := drawObject(t)
		kind, uid := state.KindOf(object), object.GetMetadata().GetUid()
		version := m.drawVersion(t, id{kind, uid})
		switch rapid.IntRange(0, 6).Draw(t, "action") {
		case 0, 1:
			b.Create(object)
		case 2:
			b.Put(object)
		case 3:
			b.Update(object, version)
		case 4:
			b.Delete(kind, uid)
		case 5:
			b.DeleteVersion(kind, uid, version)
		case 6:
			b.Check(kind, uid, version)
		}
	}
	return b.Transaction(now)
}

// moment is a snapshot and the model that it must agree with for ever.
type moment struct {
	snapshot *state.Snapshot
	model    model
}

// A store and a naive model agree on the outcome of random transactions and on the answer to every query. Snapshots
// never change, the feed leads from one to the next, and a saved store is restored exactly.
func TestStoreAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		store, now := state.New(), time.Unix(1_700_000_000, 0)
		expected, index := model{}, uint64(0)
		followed := model{}
		_, feed := store.Subscribe()
		var moments []moment
		t.Repeat(map[string]func(*rapid.T){
			"apply": func(t *rapid.T) {
				var entries []state.Entry
				var refusals []error
				for range rapid.IntRange(1, 3).Draw(t, "transactions") {
					index += rapid.Uint64Range(1, 3).Draw(t, "step")
					now = now.Add(time.Second)
					tx := expected.drawTransaction(t, now)
					next, refusal := expected.apply(index, proto.CloneOf(tx))
					expected, refusals = next, append(refusals, refusal)
					entries = append(entries, state.Entry{Index: index, Transaction: tx})
				}
				for i, outcome := range store.ApplyAll(entries) {
					if got, want := fmt.Sprintf("%T", outcome.Err), fmt.Sprintf("%T", refusals[i]); got != want {
						t.Fatalf("transaction %d: got %s (%v), want %s", i, got, outcome.Err, want)
					}
				}
			},
			"keep": func(*rapid.T) {
				moments = append(moments, moment{store.Snapshot(), expected})
			},
			"follow": func(t *rapid.T) {
				follow(t, feed, followed)
				equal(t, followed, expected)
			},
			"saveAndRestore": func(t *rapid.T) {
				saved := save(t, store.Snapshot())
				restored := state.New()
				if err := restored.Restore(bytes.NewReader(saved)); err != nil {
					t.Fatal(err)
				}
				agree(t, restored.Snapshot(), expected)
				if !bytes.Equal(save(t, restored.Snapshot()), saved) {
					t.Fatal("what was restored is saved differently")
				}
				store, followed = restored, maps.Clone(expected)
				_, feed = store.Subscribe()
			},
			"": func(t *rapid.T) {
				agree(t, store.Snapshot(), expected)
				if store.Snapshot().Index() != index {
					t.Fatalf("index %d, want %d", store.Snapshot().Index(), index)
				}
			},
		})
		for _, old := range moments {
			agree(t, old.snapshot, old.model)
		}
	})
}

// follow applies the changes of a feed to a model, which must hold the objects that they replace.
func follow(t *rapid.T, feed *state.Subscription, m model) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	changes, err := feed.Next(ended) // returns what is already there
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for _, change := range changes {
		object := change.New
		if object == nil {
			object = change.Old
		}
		at := id{change.Kind, object.GetMetadata().GetUid()}
		if (m[at] == nil) != (change.Old == nil) || m[at] != nil && !proto.Equal(m[at], change.Old) {
			t.Fatalf("the feed replaces %v, which was %v", change.Old, m[at])
		}
		if m[at] = change.New; change.New == nil {
			delete(m, at)
		}
	}
}

func equal(t *rapid.T, got, want model) {
	if !maps.EqualFunc(got, want, func(a, b state.Object) bool { return proto.Equal(a, b) }) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// agree compares the answers of a snapshot to all queries with those of the model.
func agree(t *rapid.T, s *state.Snapshot, m model) {
	counts := map[state.Kind]int{}
	for at, want := range m {
		counts[at.kind]++
		if got := s.Get(at.kind, at.uid); got == nil || !proto.Equal(got, want) {
			t.Fatalf("%v is %v, want %v", at, got, want)
		}
	}
	for _, kind := range []state.Kind{state.KindCluster, state.KindNode, state.KindEvent, state.KindReceipt, state.KindWorkload, state.KindReplica, state.KindMark} {
		if s.Count(kind) != counts[kind] {
			t.Fatalf("%d of kind %s, want %d", s.Count(kind), kind, counts[kind])
		}
	}
	everything := func(state.Object) bool { return true }
	same(t, "nodes", uidsOf(s.Nodes("")), m.all(state.KindNode, everything))
	same(t, "workloads", uidsOf(s.Workloads("", "")), m.all(state.KindWorkload, everything))
	for _, namespace := range []string{"", "x", "xy", "z"} {
		for _, after := range []string{"", "x/aa", "xy/c", "y/a-b"} {
			ns, name, _ := strings.Cut(after, "/")
			same(t, "page of replicas", uidsOf(s.Replicas(namespace, after)), m.all(state.KindReplica, func(o state.Object) bool {
				at := o.GetMetadata()
				later := at.GetNamespace() > ns || at.GetNamespace() == ns && at.GetName() > name
				return (namespace == "" || at.GetNamespace() == namespace) && later
			}))
		}
	}
	for _, uid := range []string{"", "u1", "u2", "u3"} {
		on := m.all(state.KindReplica, func(o state.Object) bool { return o.(*v1.Replica).GetSpec().GetNodeUid() == uid })
		same(t, "replicas on", uidsOf(s.ReplicasOn(uid)), on)
		of := m.all(state.KindReplica, func(o state.Object) bool { return o.(*v1.Replica).GetSpec().GetWorkloadUid() == uid })
		got := uidsOf(s.ReplicasOf(uid))
		slices.Sort(of)
		slices.Sort(got) // by name only: namespaces may have the same names
		same(t, "replicas of", got, of)
	}
	events := m.all(state.KindEvent, everything)
	slices.Sort(events)
	same(t, "oldest events", uidsOf(s.OldestEvents()), events)
	slices.Reverse(events)
	same(t, "events", uidsOf(s.Events("")), events)
	same(t, "events before", uidsOf(s.Events("u4")), slices.DeleteFunc(events, func(uid string) bool { return uid >= "u4" }))
}

func same(t *rapid.T, what string, got, want []string) {
	if !slices.Equal(got, want) {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

type fataler interface{ Fatal(args ...any) }

func save(t fataler, s *state.Snapshot) []byte {
	var saved bytes.Buffer
	if err := s.Save(&saved); err != nil {
		t.Fatal(err)
	}
	return saved.Bytes()
}
