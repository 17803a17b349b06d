package consensus

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Entries hold the proposals of a batch in their order, no more than fit, and come back from the log unchanged. A
// proposal without a version comes first in its entry.
func TestEntriesHoldTheirProposals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var batch []waiting
		for n := range rapid.IntRange(1, 60).Draw(t, "proposals") {
			var b state.Batch
			node := &v1.Node{Metadata: &v1.Metadata{Uid: fmt.Sprint(n)}}
			if rapid.IntRange(0, 20).Draw(t, "large") == 0 {
				node.Metadata.Name = strings.Repeat("x", maxSharedSize/2)
			}
			switch rapid.IntRange(0, 9).Draw(t, "change") {
			case 0:
				b.Put(node)
			case 1:
				b.Delete(state.KindNode, node.GetMetadata().GetUid())
			default:
				b.Create(node)
			}
			tx := b.Transaction(time.Unix(int64(n), 0))
			data, err := proto.Marshal(tx)
			if err != nil {
				t.Fatal(err)
			}
			batch = append(batch, waiting{Proposal: Proposal{Data: data, Value: tx}})
		}
		n := 0
		for _, e := range (&Group{machine: &transactions{}}).entriesOf(batch) {
			decoded, _, err := (&proposed{}).decode(e.data)
			if err != nil {
				t.Fatal(err)
			}
			if len(decoded) != len(e.proposals) || len(decoded) > maxShared || len(decoded) > 1 && len(e.data) > maxSharedSize+6*maxShared {
				t.Fatalf("an entry of %d proposals and %d bytes comes back with %d transactions", len(e.proposals), len(e.data), len(decoded))
			}
			for i, tx := range decoded {
				if !proto.Equal(tx, transactionOf(batch[n].Proposal)) {
					t.Fatalf("transaction %d is %v, want %v", n, tx, batch[n].Value)
				}
				if i > 0 && tx.GetChanges()[0].ExpectVersion == nil {
					t.Fatalf("transaction %d names no version and shares an entry", n)
				}
				n++
			}
		}
		if n != len(batch) {
			t.Fatalf("%d proposals of %d are in the entries", n, len(batch))
		}
	})
}

// lostEntry is raft's answer for an entry that it had accepted.
type lostEntry struct {
	raft.ApplyFuture
	err error
}

func (l lostEntry) Error() error { return l.err }

// When raft stops, the others may have committed what it had, and what it could not write may still be found on disk at
// the next start: no caller may be told that nothing has happened.
func TestEntryAcceptedByRaftIsUncertain(t *testing.T) {
	c := &Group{}
	for _, why := range []error{raft.ErrRaftShutdown, raft.ErrLeadershipLost, syscall.EIO} {
		if _, err := c.outcomes(entry{}, lostEntry{err: why}); !errors.Is(err, ErrUncertain) || errors.Is(err, ErrShutdown) || errors.Is(err, ErrNotLeader) {
			t.Errorf("after %v its outcome is %v", why, err)
		}
	}
}
