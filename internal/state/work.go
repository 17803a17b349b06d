package state

import (
	"slices"

	"github.com/hashicorp/go-memdb"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// work is the state in the middle of being changed: what was there before, and what is different above it. The tables
// are changed at the end and never read in between, because memdb forgets with every such read which parts of a table
// it has copied already, and copies them again for the next change.
type work struct {
	before  *memdb.Txn
	index   uint64
	counts  []int
	changes []Change

	staged []staged
	above  []above // one for each of the tables
}

// staged is an object that is different now.
type staged struct {
	kind    Kind
	was, is Object // nil for nothing
}

// above finds what is different in one table.
type above struct {
	byUID  map[string]int  // positions in staged
	byName map[name]Object // nil for a name that has become free
}

// name is what named objects have alone.
type name struct {
	namespace, name string
}

func nameOf(o Object) name {
	return name{o.GetMetadata().GetNamespace(), o.GetMetadata().GetName()}
}

func newWork(before *Snapshot) *work {
	return &work{
		before: before.txn, index: before.index, counts: slices.Clone(before.counts), above: make([]above, len(tables)),
	}
}

// commit brings all that is different into the tables and returns the state after it.
func (w *work) commit(db *memdb.MemDB) *Snapshot {
	txn := db.Txn(true)
	for _, s := range w.staged {
		// Names that become free do so before anything takes them.
		if s.was != nil && (s.is == nil || nameOf(s.is) != nameOf(s.was)) {
			must(txn.Delete(string(s.kind), s.was))
		}
	}
	for _, s := range w.staged {
		if s.is != nil && s.is != s.was {
			must(txn.Insert(string(s.kind), s.is))
		}
	}
	txn.Commit()
	return &Snapshot{txn: db.Txn(false), index: w.index, counts: w.counts}
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
		object := w.get(kind, uid)
		return object, expect(kind, uid, "", object, change.ExpectVersion)
	}
}

func (w *work) put(kind Kind, object Object, version *uint64, now *timestamppb.Timestamp) (Object, error) {
	metadata := object.GetMetadata()
	old := w.get(kind, metadata.GetUid())
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

func (w *work) delete(kind Kind, uid string, version *uint64) (Object, error) {
	old := w.get(kind, uid)
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

// get returns the object with a uid as it is now.
func (w *work) get(kind Kind, uid string) Object {
	if at, different := w.above[ordinals[kind]].byUID[uid]; different {
		return w.staged[at].is
	}
	return first[Object](w.before, kind, indexUID, key(uid))
}

// rival returns another object that has the name which this one wants, or the only place that there is.
func (w *work) rival(kind Kind, object, old Object) Object {
	t := tables[ordinals[kind]]
	if old == nil && t.single {
		return w.only(kind)
	}
	if !t.named || old != nil && nameOf(old) == nameOf(object) {
		return nil
	}
	if other, different := w.above[ordinals[kind]].byName[nameOf(object)]; different {
		return other
	}
	return first[Object](w.before, kind, indexName, nameKey(object))
}

// only returns the one object of a kind of which there is at most one.
func (w *work) only(kind Kind) Object {
	for _, at := range w.above[ordinals[kind]].byUID {
		if w.staged[at].is != nil {
			return w.staged[at].is
		}
	}
	if w.counts[ordinals[kind]] == 0 {
		return nil
	}
	return first[Object](w.before, kind, indexUID, nil)
}

// replace puts an object in the place of another one; nil means nothing.
func (w *work) replace(kind Kind, from, to Object) {
	ordinal := ordinals[kind]
	t, either := &w.above[ordinal], to
	switch {
	case to == nil:
		either = from
		w.counts[ordinal]--
	case from == nil:
		w.counts[ordinal]++
	}
	t.stage(w, kind, either.GetMetadata().GetUid(), from, to)
	if tables[ordinal].named {
		t.rename(from, to)
	}
}

func (t *above) stage(w *work, kind Kind, uid string, from, to Object) {
	if at, different := t.byUID[uid]; different {
		w.staged[at].is = to
		return
	}
	if t.byUID == nil {
		t.byUID = map[string]int{}
	}
	t.byUID[uid] = len(w.staged)
	w.staged = append(w.staged, staged{kind: kind, was: from, is: to})
}

func (t *above) rename(from, to Object) {
	if t.byName == nil {
		t.byName = map[name]Object{}
	}
	if from != nil {
		t.byName[nameOf(from)] = nil
	}
	if to != nil {
		t.byName[nameOf(to)] = to
	}
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
