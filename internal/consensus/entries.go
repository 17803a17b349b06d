package consensus

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// What one entry of the log may hold beside its first transaction. An entry costs every server more than a small
// transaction, and raft writes the first entry of a batch to disk while the others are still on their way to it: a
// batch of small ones is one entry. But snapshots are taken after a number of entries, and a log of large ones would be
// long by then.
const (
	maxShared     = 64
	maxSharedSize = 48 << 10
)

// othersField is the number of the field others of a Transaction.
var othersField = (&statev1.Transaction{}).ProtoReflect().Descriptor().Fields().ByName("others").Number()

// Join implements Machine. As long as there is no read in between, several transactions can share an index.
func (t *transactions) Join(proposals []Proposal) (data []byte, taken int) {
	n, size := 1, len(proposals[0].Data)
	for n < min(len(proposals), maxShared) && size+len(proposals[n].Data) <= maxSharedSize && !blind(transactionOf(proposals[n])) {
		size += len(proposals[n].Data)
		n++
	}
	data = encodeTogether(proposals[:n], size)
	t.proposed.add(data, proposals[:n])
	return data, n
}

// forget implements remembering.
func (t *transactions) forget(data []byte) { t.proposed.take(data) }

func transactionOf(p Proposal) *statev1.Transaction { return p.Value.(*statev1.Transaction) }

// blind reports whether a transaction changes something regardless of its version. It must come first in its entry.
// Otherwise it could replace what an earlier transaction of the entry wrote, both would have the same version, and an
// update based on one would pass for an update based on the other. Transactions that name versions are refused in that
// case.
func blind(tx *statev1.Transaction) bool {
	return slices.ContainsFunc(tx.GetChanges(), func(change *statev1.Change) bool { return change.ExpectVersion == nil })
}

// encodeTogether combines encoded transactions into one that has all but the first as its others.
func encodeTogether(proposals []Proposal, size int) []byte {
	if len(proposals) == 1 {
		return proposals[0].Data
	}
	const header = 6 // tag and length of one of the others
	data := append(make([]byte, 0, size+header*len(proposals)), proposals[0].Data...)
	for _, p := range proposals[1:] {
		data = protowire.AppendTag(data, othersField, protowire.BytesType)
		data = protowire.AppendBytes(data, p.Data)
	}
	return data
}
