package state

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// work is the state in the middle of being changed: tables of which it owns the parts that it has changed already.
type work struct {
	by      *owner
	rows    []rows
	before  uint64 // the index that it began with
	index   uint64
	counts  []int
	changes []Change
}

// name is what named objects have alone.
type name struct {
	namespace, name string
}

func nameOf(o Object) name {
	return name{o.GetMetadata().GetNamespace(), o.GetMetadata().GetName()}
}

func newWork(before *Snapshot) *work {
	w := &work{by: &owner{}, rows: slices.Clone(before.rows), before: before.index, index: before.index, counts: slices.Clone(before.counts)}
	for i := range w.rows {
		w.rows[i].others = slices.Clone(w.rows[i].others)
	}
	return w
}

// finish returns the state after the changes. The work is over: what it owns is everybody's now.
func (w *work) finish() *Snapshot {
	w.by = nil
	return &Snapshot{rows: w.rows, index: w.index, counts: w.counts}
}

func (w *work) apply(entry Entry) (Result, error) {
	w.index = entry.Index
	undoTo := len(w.changes)
	result := Result{Index: entry.Index, Objects: make([]Object, 0, len(entry.Transaction.GetChanges()))}
	part, partFrom, partOf := uint32(0), len(w.changes), 0
	for i, change := range entry.Transaction.GetChanges() {
		if change.GetPart() != part {
			part, partFrom, partOf = change.GetPart(), len(w.changes), i
		}
		if result.LeftOut[part] != nil {
			result.Objects = append(result.Objects, nil)
			continue
		}
		object, err := w.change(change, entry.Transaction.GetTime())
		if err != nil && part == 0 {
			w.undo(undoTo)
			return Result{}, err
		}
		result.Objects = append(result.Objects, object)
		if err != nil {
			w.undo(partFrom)
			result.leaveOut(part, partOf, err)
		}
	}
	return result, nil
}

// leaveOut notes that nothing came of a part of a transaction that begins with a change.
func (r *Result) leaveOut(part uint32, from int, err error) {
	if r.LeftOut == nil {
		r.LeftOut = map[uint32]error{}
	}
	r.LeftOut[part] = err
	clear(r.Objects[from:])
}

// change makes one change of a valid transaction.
func (w *work) change(change *statev1.Change, now *timestamppb.Timestamp) (Object, error) {
	switch action := change.GetAction().(type) {
	case *statev1.Change_Put:
		kind, object := unwrap(action.Put)
		return w.put(kind, object, change.ExpectVersion, now)
	case *statev1.Change_Delete:
		return w.delete(Kind(action.Delete.GetKind()), action.Delete.GetUid(), change.ExpectVersion, now)
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
	w.note(kind, old, object)
	w.mark(kind, old, object, now)
	return object, nil
}

func (w *work) delete(kind Kind, uid string, version *uint64, now *timestamppb.Timestamp) (Object, error) {
	old := w.get(kind, uid)
	if err := expect(kind, uid, "", old, version); err != nil {
		return nil, err
	}
	if old != nil {
		w.note(kind, old, nil)
		w.mark(kind, old, nil, now)
	}
	return old, nil
}

// note makes a change that can be undone.
func (w *work) note(kind Kind, from, to Object) {
	w.replace(kind, from, to)
	w.changes = append(w.changes, Change{Kind: kind, Old: from, New: to})
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
func (w *work) get(kind Kind, uid string) Object { return w.rows[ordinals[kind]].byUID.get(uid) }

// rival returns another object that has the name which this one wants, or the only place that there is.
func (w *work) rival(kind Kind, object, old Object) (other Object) {
	t, there := &tables[ordinals[kind]], &w.rows[ordinals[kind]]
	switch {
	case old == nil && t.single:
		there.byUID.prefixed("", func(o Object) bool { other = o; return false })
		return other
	case !t.named || old != nil && nameOf(old) == nameOf(object):
		return nil
	}
	return there.byName.get(nameKey(object))
}

// replace puts an object in the place of another one; nil means nothing.
func (w *work) replace(kind Kind, from, to Object) {
	ordinal := ordinals[kind]
	switch {
	case to == nil:
		w.counts[ordinal]--
	case from == nil:
		w.counts[ordinal]++
	}
	w.rows[ordinal].replace(w.by, ordinal, from, to)
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
