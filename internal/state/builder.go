package state

import (
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// builder builds the next snapshot from the one before. It copies only those parts of the tables that it changes.
type builder struct {
	by      *owner
	rows    []rows
	before  uint64 // index of the snapshot that it began with
	index   uint64
	counts  []int
	changes []Change
}

// name is unique among named objects of a kind.
type name struct {
	namespace, name string
}

func nameOf(o Object) name {
	return name{o.GetMetadata().GetNamespace(), o.GetMetadata().GetName()}
}

func newBuilder(before *Snapshot) *builder {
	b := &builder{by: &owner{}, rows: slices.Clone(before.rows), before: before.index, index: before.index, counts: slices.Clone(before.counts)}
	for i := range b.rows {
		b.rows[i].others = slices.Clone(b.rows[i].others)
	}
	return b
}

// finish returns the next snapshot. The builder must not be used afterwards, because the snapshot shares its tables.
func (b *builder) finish() *Snapshot {
	b.by = nil
	return &Snapshot{rows: b.rows, index: b.index, counts: b.counts}
}

// apply applies one valid entry.
func (b *builder) apply(entry Entry) (Result, error) {
	b.index = entry.Index
	entryStart := len(b.changes)
	result := Result{Index: entry.Index, Objects: make([]Object, 0, len(entry.Transaction.GetChanges()))}
	part, partStart, partFirst := uint32(0), len(b.changes), 0
	for i, change := range entry.Transaction.GetChanges() {
		if change.GetPart() != part {
			part, partStart, partFirst = change.GetPart(), len(b.changes), i
		}
		if result.LeftOut[part] != nil {
			result.Objects = append(result.Objects, nil)
			continue
		}
		object, err := b.change(change, entry.Transaction.GetTime())
		if err != nil && part == 0 {
			b.undo(entryStart)
			return Result{}, err
		}
		result.Objects = append(result.Objects, object)
		if err != nil {
			b.undo(partStart)
			result.leaveOut(part, partFirst, err)
		}
	}
	return result, nil
}

// leaveOut records that a part was left out. Its changes begin at the position first.
func (r *Result) leaveOut(part uint32, first int, err error) {
	if r.LeftOut == nil {
		r.LeftOut = map[uint32]error{}
	}
	r.LeftOut[part] = err
	clear(r.Objects[first:])
}

// change applies one change of a valid transaction.
func (b *builder) change(change *statev1.Change, now *timestamppb.Timestamp) (Object, error) {
	switch action := change.GetAction().(type) {
	case *statev1.Change_Put:
		kind, object := unwrap(action.Put)
		return b.put(kind, object, change.ExpectVersion, now)
	case *statev1.Change_Delete:
		return b.delete(Kind(action.Delete.GetKind()), action.Delete.GetUid(), change.ExpectVersion, now)
	default:
		kind, uid := Kind(change.GetCheck().GetKind()), change.GetCheck().GetUid()
		object := b.get(kind, uid)
		return object, expect(kind, uid, "", object, change.ExpectVersion)
	}
}

func (b *builder) put(kind Kind, object Object, version *uint64, now *timestamppb.Timestamp) (Object, error) {
	metadata := object.GetMetadata()
	old := b.get(kind, metadata.GetUid())
	if err := expect(kind, metadata.GetUid(), Path(object), old, version); err != nil {
		return nil, err
	}
	if other := b.rival(kind, object, old); other != nil {
		return nil, &ExistsError{Kind: kind, Name: Path(other), UID: other.GetMetadata().GetUid()}
	}
	metadata.Version, metadata.CreateTime, metadata.UpdateTime = b.index, now, now
	if old != nil {
		metadata.CreateTime = old.GetMetadata().GetCreateTime()
	}
	b.record(kind, old, object)
	b.advanceMarks(kind, old, object, now)
	return object, nil
}

func (b *builder) delete(kind Kind, uid string, version *uint64, now *timestamppb.Timestamp) (Object, error) {
	old := b.get(kind, uid)
	if err := expect(kind, uid, "", old, version); err != nil {
		return nil, err
	}
	if old != nil {
		b.record(kind, old, nil)
		b.advanceMarks(kind, old, nil, now)
	}
	return old, nil
}

// record makes a change that undo can revert.
func (b *builder) record(kind Kind, from, to Object) {
	b.replace(kind, from, to)
	b.changes = append(b.changes, Change{Kind: kind, Old: from, New: to})
}

// undo reverts all changes after the first keep ones, newest first.
func (b *builder) undo(keep int) {
	for _, change := range slices.Backward(b.changes[keep:]) {
		b.replace(change.Kind, change.New, change.Old)
	}
	clear(b.changes[keep:])
	b.changes = b.changes[:keep]
}

// get returns the current object with a uid.
func (b *builder) get(kind Kind, uid string) Object { return b.rows[ordinals[kind]].byUID.get(uid) }

// rival returns the other object that prevents this one from being stored: the one with the same name, the existing one
// if the kind is single, or the service with the same address.
func (b *builder) rival(kind Kind, object, old Object) (other Object) {
	t, existing := &tables[ordinals[kind]], &b.rows[ordinals[kind]]
	if service, ok := object.(*v1.Service); ok {
		if holder := b.addressHolder(service); holder != nil {
			return holder
		}
	}
	switch {
	case old == nil && t.single:
		existing.byUID.withPrefix("", func(o Object) bool { other = o; return false })
		return other
	case !t.named || old != nil && nameOf(old) == nameOf(object):
		return nil
	}
	return existing.byName.get(nameKey(object))
}

// replace replaces one object by another. Either of them may be nil: then it creates or deletes.
func (b *builder) replace(kind Kind, from, to Object) {
	ordinal := ordinals[kind]
	switch {
	case to == nil:
		b.counts[ordinal]--
	case from == nil:
		b.counts[ordinal]++
	}
	b.rows[ordinal].replace(b.by, ordinal, from, to)
}

// expect checks the version of the stored object, which is nil if there is none.
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
