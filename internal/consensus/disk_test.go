package consensus

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
)

// After a leader change, a follower deletes entries that were never committed. The rest must be readable after a
// restart, and must not look damaged.
func TestDeletedEntriesLeaveAnIntactLog(t *testing.T) {
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
	for range 2 { // also from a segment that a deletion created
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

// A failed deletion of entries must stop the server, because the log cannot recover from it: reopening the log clears
// away what is in the way.
func TestFailedDeletionStopsTheServer(t *testing.T) {
	dir := t.TempDir()
	logger := newHCLogger(slog.New(slog.DiscardHandler))
	for attempt := range 2 {
		d, err := openDisk(dir, logger)
		if err != nil {
			t.Fatal(err)
		}
		if attempt == 0 {
			for i := uint64(1); i <= 10; i++ {
				if err := d.log.StoreLog(&raft.Log{Index: i, Term: 1, Data: []byte("x")}); err != nil {
					t.Fatal(err)
				}
			}
			// As a full disk leaves it: the next segment was created and is not registered.
			if err := os.WriteFile(filepath.Join(dir, logDir, fmt.Sprintf("%020d-%016x.wal", 6, 1)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var failed error
		err = watchedLog{observedLog{d.stepped(), noObserver{}}, func(err error) { failed = err }}.DeleteRange(6, 10)
		if attempt == 0 && (err == nil || failed == nil) || attempt == 1 && (err != nil || failed != nil) {
			t.Errorf("attempt %d: %v, and the server hears %v", attempt, err, failed)
		}
		if err := d.close(); err != nil {
			t.Fatal(err)
		}
	}
}
