package consensus

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"
)

// TestTakenBackEntriesLeaveAWholeLog: a follower takes back entries that were never agreed on when another server leads.
// What is left must be readable after a restart, and must not look damaged.
func TestTakenBackEntriesLeaveAWholeLog(t *testing.T) {
	dir := t.TempDir()
	logger := newHCLogger(slog.New(slog.DiscardHandler))
	entry := func(index, term uint64) *raft.Log {
		return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: fmt.Appendf(nil, "%d in %d", index, term)}
	}
	d, err := openDisk(dir, logger)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 10; i++ {
		if err := d.log.StoreLog(entry(i, 1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // also of a segment that was made by taking back
		if err := d.log.DeleteRange(6, 10); err != nil {
			t.Fatal(err)
		}
		if err := d.log.StoreLogs([]*raft.Log{entry(6, 2), entry(7, 2), entry(8, 2), entry(9, 2), entry(10, 2)}); err != nil {
			t.Fatal(err)
		}
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
		if d, err = openDisk(dir, logger); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { _ = d.close() }()
	for i := uint64(1); i <= 10; i++ {
		var got raft.Log
		if err := d.log.GetLog(i, &got); err != nil || got.Index != i || (got.Term == 2) != (i > 5) {
			t.Errorf("entry %d is %+v, %v", i, got, err)
		}
	}
}
