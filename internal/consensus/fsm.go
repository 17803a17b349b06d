package consensus

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// fsm applies committed entries to the machine. It stops at the first entry that the machine cannot apply. Raft calls it
// from one goroutine.
type fsm struct {
	machine  Machine
	content  content
	observer Observer
	broken   error
	// saving is called with every snapshot, and saved with its size.
	saving func()
	saved  func(int64)
	// snapshots is their folder.
	snapshots string
	// pause may delay the writing of a snapshot. It may be nil.
	pause func(context.Context) bool
	// failed receives the error that stopped it.
	failed  chan error
	applied applied
}

var _ raft.BatchingFSM = (*fsm)(nil)

// content is how the state of a machine gets into snapshots and back.
type content interface {
	// save returns a function that writes what a snapshot of the current state contains.
	save() func(io.Writer) error
	restore(io.Reader) error
	// store is where raft keeps snapshots and finds those for other servers.
	store(*raft.FileSnapshotStore) raft.SnapshotStore
}

func newFSM(machine Machine, o Options) *fsm {
	return &fsm{
		machine: machine, content: contentOf(machine, o), observer: o.Observer, saving: func() {}, saved: func(int64) {},
		snapshots: filepath.Join(o.Dir, "snapshots"), pause: o.Pause, failed: make(chan error, 1),
	}
}

func contentOf(machine Machine, o Options) content {
	if m, ok := machine.(DiskMachine); ok {
		return onDisk{machine: m, copies: filepath.Join(o.Dir, "copies"), logger: o.Logger}
	}
	return inMemory{machine.(SavedMachine)}
}

// Apply implements raft.FSM.
func (f *fsm) Apply(log *raft.Log) any { return f.ApplyBatch([]*raft.Log{log})[0] }

// ApplyBatch implements raft.BatchingFSM. It responds with what the machine responds.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	if f.broken != nil {
		return responses
	}
	entries, at := make([]Entry, 0, len(logs)), make([]int, 0, len(logs))
	for i, log := range logs {
		if log.Type == raft.LogCommand {
			entries, at = append(entries, Entry{Index: log.Index, Data: log.Data}), append(at, i)
		}
	}
	if len(entries) == 0 {
		return responses
	}
	answers, err := f.machine.Apply(entries)
	for i, a := range answers {
		responses[at[i]] = a
	}
	if err != nil {
		f.broken = err
		f.failed <- err
	}
	f.applied.broadcast()
	return responses
}

// Snapshot implements raft.FSM.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.broken != nil {
		return nil, f.broken
	}
	f.saving()
	return saver{f, f.content.save()}, nil
}

// Restore implements raft.FSM.
func (f *fsm) Restore(saved io.ReadCloser) error {
	defer f.applied.broadcast()
	return errors.Join(f.content.restore(saved), saved.Close())
}

// saver streams a snapshot to raft's sink.
type saver struct {
	fsm  *fsm
	save func(io.Writer) error
}

// Persist implements raft.FSMSnapshot.
func (s saver) Persist(sink raft.SnapshotSink) error {
	began := time.Now()
	to := newSnapshotWriter(sink, s.fsm.snapshots, s.fsm.pause)
	counted := &countedWriter{Writer: to}
	if err := errors.Join(s.save(counted), to.Close()); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	err := sink.Close()
	s.fsm.saved(counted.written)
	s.fsm.observer.Snapshotted(time.Since(began))
	return err
}

// Release implements raft.FSMSnapshot.
func (saver) Release() {}

// inMemory is the content of a machine in memory.
type inMemory struct{ machine SavedMachine }

func (m inMemory) save() func(io.Writer) error { return m.machine.Save() }

func (m inMemory) restore(from io.Reader) error { return m.machine.Restore(from) }

func (m inMemory) store(files *raft.FileSnapshotStore) raft.SnapshotStore { return files }
