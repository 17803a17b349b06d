package consensus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/cloudless/cloudless/internal/state"
)

// fsm applies committed entries to the store. It stops at the first entry that it cannot understand, so that this
// server's state does not diverge from that of the others. Raft calls it from one goroutine.
type fsm struct {
	store    *state.Store
	observer Observer
	// proposed are this server's transactions in flight, so that it need not decode what it has encoded itself.
	proposed proposed
	broken   error
	// saving is called with every snapshot, and saved with its size.
	saving func()
	saved  func(int64)
	// snapshots is their folder.
	snapshots string
	// pause may delay the writing of a snapshot. It may be nil.
	pause func(context.Context) bool
	// failed receives the error that stopped it.
	failed chan error
}

var _ raft.BatchingFSM = (*fsm)(nil)

func newFSM(store *state.Store, observer Observer) *fsm {
	return &fsm{store: store, observer: observer, saving: func() {}, saved: func(int64) {}, failed: make(chan error, 1)}
}

// Apply implements raft.FSM.
func (f *fsm) Apply(log *raft.Log) any { return f.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch implements raft.BatchingFSM. It responds with a []state.Outcome for each log that it understands, one for
// each of its transactions.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	entries := make([]state.Entry, 0, len(logs))
	ends := make([]int, len(logs)) // of each log's part of the entries
	for i, log := range logs {
		if log.Type == raft.LogCommand && f.broken == nil {
			transactions, here, err := f.proposed.decode(log.Data)
			if err != nil {
				// The logs before it are intact and still have to be applied.
				return f.applyEntries(entries, ends[:i], len(logs), func() { f.fail(log.Index, err) })
			}
			for _, tx := range transactions {
				entries = append(entries, state.Entry{Index: log.Index, Transaction: tx, Valid: here})
			}
		}
		ends[i] = len(entries)
	}
	return f.applyEntries(entries, ends, len(logs), func() {})
}

func (f *fsm) applyEntries(entries []state.Entry, ends []int, logs int, afterwards func()) []any {
	defer afterwards()
	responses := make([]any, logs)
	if len(entries) == 0 {
		return responses
	}
	outcomes := f.store.ApplyAll(entries)
	begin := 0
	for i, end := range ends {
		for at := begin; at < end; at++ {
			if _, invalid := errors.AsType[*state.InvalidError](outcomes[at].Err); invalid {
				f.fail(entries[at].Index, outcomes[at].Err)
				return responses
			}
		}
		responses[i] = outcomes[begin:end:end]
		begin = end
	}
	return responses
}

func (f *fsm) fail(index uint64, reason error) {
	if f.broken != nil {
		return
	}
	f.broken = fmt.Errorf("the log entry %d is not understood, a newer release must have written it: update this server: %w", index, reason)
	f.failed <- f.broken
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.broken != nil {
		return nil, f.broken
	}
	f.saving()
	return saver{f, f.store.Snapshot()}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(saved io.ReadCloser) error {
	return errors.Join(f.store.Restore(saved), saved.Close())
}

// saver streams a snapshot to raft's sink.
type saver struct {
	fsm      *fsm
	snapshot *state.Snapshot
}

// Persist implements raft.FSMSnapshot.
func (s saver) Persist(sink raft.SnapshotSink) error {
	began := time.Now()
	to := newSnapshotWriter(sink, s.fsm.snapshots, s.fsm.pause)
	counted := &countedWriter{Writer: to}
	if err := errors.Join(s.snapshot.Save(counted), to.Close()); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	err := sink.Close()
	s.fsm.saved(counted.written)
	s.fsm.observer.Snapshotted(time.Since(began))
	return err
}

// Release implements raft.FSMSnapshot.
func (saver) Release() {}
