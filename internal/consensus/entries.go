package consensus

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// What one entry of the log may hold beside its first transaction. An entry costs every server more than a small
// transaction, and raft writes the first entry of a group to disk while the others are still on their way to it: a
// group of small ones is one entry. But snapshots are taken after a number of entries, and a log of large ones would be
// long by then.
const (
	maxShared     = 64
	maxSharedSize = 48 << 10
)

// othersField is the number of the field others of a Transaction.
var othersField = (&statev1.Transaction{}).ProtoReflect().Descriptor().Fields().ByName("others").Number()

// entry is what is written to the log together: as long as there is no read in between, several transactions can share
// an index.
type entry struct {
	proposals []proposal
	data      []byte
}

// entriesOf divides a group into entries, in its order.
func entriesOf(group []proposal) []entry {
	entries := make([]entry, 0, len(group)/maxShared+1)
	for len(group) > 0 {
		n, size := 1, len(group[0].data)
		for n < min(len(group), maxShared) && size+len(group[n].data) <= maxSharedSize && !blind(group[n].tx) {
			size += len(group[n].data)
			n++
		}
		entries = append(entries, entry{proposals: group[:n], data: encodeTogether(group[:n], size)})
		group = group[n:]
	}
	return entries
}

// blind reports whether a transaction changes something regardless of its version. It must come first in its entry.
// Otherwise it could replace what an earlier transaction of the entry wrote, both would have the same version, and an
// update based on one would pass for an update based on the other. Transactions that name versions are refused in that
// case.
func blind(tx *statev1.Transaction) bool {
	return slices.ContainsFunc(tx.GetChanges(), func(change *statev1.Change) bool { return change.ExpectVersion == nil })
}

// encodeTogether combines encoded transactions into one that has all but the first as its others.
func encodeTogether(proposals []proposal, size int) []byte {
	if len(proposals) == 1 {
		return proposals[0].data
	}
	const header = 6 // tag and length of one of the others
	data := append(make([]byte, 0, size+header*len(proposals)), proposals[0].data...)
	for _, p := range proposals[1:] {
		data = protowire.AppendTag(data, othersField, protowire.BytesType)
		data = protowire.AppendBytes(data, p.data)
	}
	return data
}

func (e entry) transactions() []*statev1.Transaction {
	all := make([]*statev1.Transaction, len(e.proposals))
	for i, p := range e.proposals {
		all[i] = p.tx
	}
	return all
}
