package state

import (
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Batch collects the changes of one transaction, which are applied in this order. Its zero value is empty. The objects
// belong to the transaction afterwards: clone an object that comes from a snapshot.
type Batch struct {
	changes []*statev1.Change
	part    uint32 // part of the next change, 0 if it belongs to none
	parts   uint32 // number of parts so far
}

// BeginPart begins a part. Its changes are applied together or left out together, without affecting the rest.
func (b *Batch) BeginPart() {
	b.parts++
	b.part = b.parts
}

// EndPart ends a part. If a later change is refused, so is the whole transaction.
func (b *Batch) EndPart() { b.part = 0 }

// Create creates an object, whose uid and name must be free.
func (b *Batch) Create(o Object) { b.put(o, new(uint64)) }

// Update replaces an object, which must have this version.
func (b *Batch) Update(o Object, version uint64) { b.put(o, &version) }

// Put creates an object or replaces it, whatever its version.
func (b *Batch) Put(o Object) { b.put(o, nil) }

// Delete deletes an object if it exists.
func (b *Batch) Delete(kind Kind, uid string) {
	b.add(&statev1.Change{Action: &statev1.Change_Delete{Delete: objectKey(kind, uid)}})
}

// DeleteVersion deletes an object, which must have this version.
func (b *Batch) DeleteVersion(kind Kind, uid string, version uint64) {
	b.add(&statev1.Change{Action: &statev1.Change_Delete{Delete: objectKey(kind, uid)}, ExpectVersion: &version})
}

// DeleteWorkload deletes a workload with its revisions and deployments. Its ended replicas stay as long as their logs.
func (b *Batch) DeleteWorkload(s *Snapshot, w *v1.Workload) {
	for revision := range s.RevisionsOf(w.GetMetadata().GetUid()) {
		b.Delete(KindRevision, revision.GetMetadata().GetUid())
	}
	for deployment := range s.DeploymentsOf(w.GetMetadata().GetUid()) {
		b.Delete(KindDeployment, deployment.GetMetadata().GetUid())
	}
	b.DeleteVersion(KindWorkload, w.GetMetadata().GetUid(), w.GetMetadata().GetVersion())
}

// Check requires that an object has this version, or that it does not exist if the version is 0. It changes nothing.
func (b *Batch) Check(kind Kind, uid string, version uint64) {
	b.add(&statev1.Change{Action: &statev1.Change_Check{Check: objectKey(kind, uid)}, ExpectVersion: &version})
}

// CheckFirst is Check before all other changes, even those that are already in the batch: they may move a mark.
func (b *Batch) CheckFirst(kind Kind, uid string, version uint64) {
	check := &statev1.Change{Action: &statev1.Change_Check{Check: objectKey(kind, uid)}, ExpectVersion: &version}
	b.changes = slices.Insert(b.changes, 0, check)
}

// Len returns the number of changes.
func (b *Batch) Len() int { return len(b.changes) }

// Workloads yields the workloads that the batch creates or updates.
func (b *Batch) Workloads() iter.Seq[*v1.Workload] {
	return Puts[*v1.Workload](b)
}

// Puts yields the objects of one type that a batch creates or updates.
func Puts[T Object](b *Batch) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, c := range b.changes {
			if _, o := unwrap(c.GetPut()); o != nil {
				if o, ok := o.(T); ok && !yield(o) {
					return
				}
			}
		}
	}
}

// Deletes reports whether the batch deletes an object.
func (b *Batch) Deletes(kind Kind, uid string) bool {
	return slices.ContainsFunc(b.changes, func(c *statev1.Change) bool {
		return c.GetDelete().GetUid() == uid && c.GetDelete().GetKind() == string(kind)
	})
}

// Deleted yields the kinds and uids of the objects that the batch deletes.
func (b *Batch) Deleted() iter.Seq2[Kind, string] {
	return func(yield func(Kind, string) bool) {
		for _, c := range b.changes {
			if key := c.GetDelete(); key != nil && !yield(Kind(key.GetKind()), key.GetUid()) {
				return
			}
		}
	}
}

// Concerns reports whether the batch writes or deletes objects of some kinds.
func (b *Batch) Concerns(kinds ...Kind) bool {
	return slices.ContainsFunc(b.changes, func(c *statev1.Change) bool {
		if _, o := unwrap(c.GetPut()); o != nil {
			return slices.Contains(kinds, KindOf(o))
		}
		return c.GetDelete() != nil && slices.Contains(kinds, Kind(c.GetDelete().GetKind()))
	})
}

// Transaction returns the transaction. Objects that it creates or updates get this time.
func (b *Batch) Transaction(now time.Time) *statev1.Transaction {
	return &statev1.Transaction{Changes: b.changes, Time: timestamppb.New(now)}
}

func (b *Batch) put(o Object, expect *uint64) {
	b.add(&statev1.Change{Action: &statev1.Change_Put{Put: wrap(o)}, ExpectVersion: expect})
}

func (b *Batch) add(c *statev1.Change) {
	c.Part = b.part
	b.changes = append(b.changes, c)
}

func objectKey(kind Kind, uid string) *statev1.Key {
	return &statev1.Key{Kind: string(kind), Uid: uid}
}
