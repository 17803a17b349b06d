package state

import (
	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Fork is a state of its own that begins as a snapshot: what is applied to it stays in it. It shares everything that
// it does not change, so that making one costs nothing however large the state is. It is for one goroutine, and nobody
// can subscribe to it.
type Fork struct {
	snapshot *Snapshot
}

// Fork returns a fork of the newest state.
func (s *Store) Fork() *Fork { return s.Snapshot().Fork() }

// Fork returns a fork of this state.
func (s *Snapshot) Fork() *Fork { return &Fork{snapshot: s} }

// Snapshot returns the fork's newest state.
func (f *Fork) Snapshot() *Snapshot { return f.snapshot }

// Apply does what [Store.Apply] does, as the next transaction, and returns the changes.
func (f *Fork) Apply(tx *statev1.Transaction) ([]Change, error) {
	changes, _, err := f.ApplyParts(tx)
	return changes, err
}

// ApplyParts is Apply for a transaction of which parts may be left out.
func (f *Fork) ApplyParts(tx *statev1.Transaction) ([]Change, Result, error) {
	entry := Entry{Index: f.snapshot.index + 1, Transaction: tx}
	w := newWork(f.snapshot)
	if err := w.understand(entry); err != nil {
		return nil, Result{}, err
	}
	result, err := w.apply(entry)
	if err != nil {
		return nil, Result{}, err
	}
	f.snapshot = w.finish()
	return w.changes, result, nil
}
