package state

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Batch collects the changes of one transaction, which are made in this order. Its zero value is empty. The objects
// belong to the transaction from then on: an object out of a snapshot has to be cloned first.
type Batch struct {
	changes []*statev1.Change
	part    uint32 // that the next change belongs to
	parts   uint32
}

// Part begins a part: what is added from now on happens together or is left out, and hinders nothing else.
func (b *Batch) Part() {
	b.parts++
	b.part = b.parts
}

// Whole ends a part: what is added from now on is needed by all.
func (b *Batch) Whole() { b.part = 0 }

// Create adds an object whose uid and name must be free.
func (b *Batch) Create(o Object) { b.put(o, new(uint64)) }

// Update replaces an object, which must be at a version.
func (b *Batch) Update(o Object, version uint64) { b.put(o, &version) }

// Put creates or replaces an object, whatever is there.
func (b *Batch) Put(o Object) { b.put(o, nil) }

// Delete removes an object, if it is there.
func (b *Batch) Delete(kind Kind, uid string) {
	b.add(&statev1.Change{Action: &statev1.Change_Delete{Delete: objectKey(kind, uid)}})
}

// DeleteVersion removes an object, which must be at a version.
func (b *Batch) DeleteVersion(kind Kind, uid string, version uint64) {
	b.add(&statev1.Change{Action: &statev1.Change_Delete{Delete: objectKey(kind, uid)}, ExpectVersion: &version})
}

// Check changes nothing, but the object must be at a version; 0 means that it must not exist.
func (b *Batch) Check(kind Kind, uid string, version uint64) {
	b.add(&statev1.Change{Action: &statev1.Change_Check{Check: objectKey(kind, uid)}, ExpectVersion: &version})
}

// Len returns the number of changes.
func (b *Batch) Len() int { return len(b.changes) }

// Transaction returns what was collected, stamped with the time that created and updated objects shall carry.
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
