package state

import (
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Store holds the newest state and makes changes to it, one transaction after the other.
type Store struct {
	mu sync.Mutex // held by the one who changes db
	db *memdb.MemDB

	feed feed
}

// Entry is a transaction in its place in the log.
type Entry struct {
	// Index is larger than that of every entry before it.
	Index       uint64
	Transaction *statev1.Transaction
}

// Outcome is what became of one entry.
type Outcome struct {
	Result Result
	Err    error
}

// Result tells what a transaction did.
type Result struct {
	// Index is the transaction's place in the log and the version of all that it put.
	Index uint64
	// Objects has one for each change, in their order: what was put, what was deleted or what was checked; nil if
	// there was nothing to delete or check.
	Objects []Object
}

// New returns an empty store.
func New() *Store {
	s := &Store{db: newDB()}
	s.feed.newest.Store(&Snapshot{txn: s.db.Txn(false), counts: make([]int, len(tables))})
	return s
}

// Snapshot returns the newest state.
func (s *Store) Snapshot() *Snapshot { return s.feed.newest.Load() }

// Apply makes the changes of one transaction, all of them or none. It owns the transaction's messages from then on.
// A refusal is a [*ConflictError], an [*ExistsError] or a [*NotFoundError]; one by [*InvalidError] means that the
// transaction was not understood and that the store stays where it was.
func (s *Store) Apply(index uint64, tx *statev1.Transaction) (Result, error) {
	outcome := s.ApplyAll([]Entry{{Index: index, Transaction: tx}})[0]
	return outcome.Result, outcome.Err
}

// ApplyAll does what [Store.Apply] does for each entry, and shows the results to readers at once. From an entry on
// that is not understood nothing is applied, and every outcome is that [*InvalidError].
func (s *Store) ApplyAll(entries []Entry) []Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.Snapshot()
	w := &work{txn: s.db.Txn(true), index: before.index, counts: slices.Clone(before.counts)}
	outcomes := make([]Outcome, len(entries))
	var invalid error
	for i, entry := range entries {
		if invalid == nil {
			invalid = w.understand(entry)
		}
		if outcomes[i].Err = invalid; invalid == nil {
			outcomes[i].Result, outcomes[i].Err = w.apply(entry)
		}
	}
	w.txn.Commit()
	s.feed.publish(&Snapshot{txn: s.db.Txn(false), index: w.index, counts: w.counts}, w.changes)
	return outcomes
}

// work is the state in the middle of being changed.
type work struct {
	txn     *memdb.Txn
	index   uint64
	counts  []int
	changes []Change
}

func (w *work) understand(entry Entry) error {
	if entry.Index <= w.index {
		return &InvalidError{Change: -1, Reason: fmt.Sprintf(
			"has the index %d, but the state is at %d already", entry.Index, w.index)}
	}
	return Validate(entry.Transaction)
}

func (w *work) apply(entry Entry) (Result, error) {
	w.index = entry.Index
	undoTo := len(w.changes)
	result := Result{Index: entry.Index, Objects: make([]Object, 0, len(entry.Transaction.GetChanges()))}
	for _, change := range entry.Transaction.GetChanges() {
		object, err := w.change(change, entry.Transaction.GetTime())
		if err != nil {
			w.undo(undoTo)
			return Result{}, err
		}
		result.Objects = append(result.Objects, object)
	}
	return result, nil
}

// change makes one change of a valid transaction.
func (w *work) change(change *statev1.Change, now *timestamppb.Timestamp) (Object, error) {
	switch action := change.GetAction().(type) {
	case *statev1.Change_Put:
		kind, object := unwrap(action.Put)
		return w.put(kind, object, change.ExpectVersion, now)
	case *statev1.Change_Delete:
		return w.delete(Kind(action.Delete.GetKind()), action.Delete.GetUid(), change.ExpectVersion)
	default:
		kind, uid := Kind(change.GetCheck().GetKind()), change.GetCheck().GetUid()
		object := w.first(kind, indexUID, key(uid))
		return object, expect(kind, uid, "", object, change.ExpectVersion)
	}
}

func (w *work) put(kind Kind, object Object, version *uint64, now *timestamppb.Timestamp) (Object, error) {
	metadata := object.GetMetadata()
	old := w.first(kind, indexUID, uidKey(object))
	if err := expect(kind, metadata.GetUid(), Path(object), old, version); err != nil {
		return nil, err
	}
	if other := w.rival(kind, object, old); other != nil {
		return nil, &ExistsError{Kind: kind, Name: Path(other), UID: other.GetMetadata().GetUid()}
	}
	metadata.Version, metadata.CreateTime, metadata.UpdateTime = w.index, now, now
	if old != nil {
		metadata.CreateTime = old.GetMetadata().GetCreateTime()
	}
	w.replace(kind, old, object)
	w.changes = append(w.changes, Change{Kind: kind, Old: old, New: object})
	return object, nil
}

// rival returns another object that has the name which this one wants, or the only place that there is.
func (w *work) rival(kind Kind, object, old Object) Object {
	if old != nil && Path(old) == Path(object) {
		return nil
	}
	if old == nil && tables[ordinals[kind]].single {
		return w.first(kind, indexUID, nil)
	}
	if !tables[ordinals[kind]].named {
		return nil
	}
	return w.first(kind, indexName, nameKey(object))
}

func (w *work) delete(kind Kind, uid string, version *uint64) (Object, error) {
	old := w.first(kind, indexUID, key(uid))
	if err := expect(kind, uid, "", old, version); err != nil {
		return nil, err
	}
	if old != nil {
		w.replace(kind, old, nil)
		w.changes = append(w.changes, Change{Kind: kind, Old: old})
	}
	return old, nil
}

// undo takes back all changes but the first ones, the last one first.
func (w *work) undo(keep int) {
	for _, change := range slices.Backward(w.changes[keep:]) {
		w.replace(change.Kind, change.New, change.Old)
	}
	clear(w.changes[keep:])
	w.changes = w.changes[:keep]
}

// replace puts an object in the place of another one; nil means nothing.
func (w *work) replace(kind Kind, from, to Object) {
	switch {
	case to == nil:
		must(w.txn.Delete(string(kind), from))
		w.counts[ordinals[kind]]--
		return
	case from == nil:
		w.counts[ordinals[kind]]++
	}
	must(w.txn.Insert(string(kind), to))
}

// first returns the object with a key, or the first of its kind if key is nil.
func (w *work) first(kind Kind, index string, key []byte) Object {
	return first[Object](w.txn, kind, index, key)
}

// expect checks the version of what is there, which may be nothing.
func expect(kind Kind, uid, name string, actual Object, version *uint64) error {
	switch {
	case version == nil:
		return nil
	case actual == nil && *version == 0:
		return nil
	case actual == nil:
		return &NotFoundError{Kind: kind, Name: name, UID: uid}
	case *version == 0:
		return &ExistsError{Kind: kind, Name: Path(actual), UID: uid}
	case *version != actual.GetMetadata().GetVersion():
		return &ConflictError{
			Kind: kind, Name: Path(actual), UID: uid,
			Expected: *version, Actual: actual.GetMetadata().GetVersion(),
		}
	}
	return nil
}
