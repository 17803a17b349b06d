package state

import (
	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Fork is a private copy of a snapshot to try transactions on. It shares everything that it does not change, so creating
// one is free however large the state is. It is for one goroutine and has no subscriptions.
type Fork struct {
	snapshot *Snapshot
}

// Fork returns a fork of the newest state.
func (s *Store) Fork() *Fork { return s.Snapshot().Fork() }

// Fork returns a fork of this state.
func (s *Snapshot) Fork() *Fork { return &Fork{snapshot: s} }

// Snapshot returns the fork's newest state.
func (f *Fork) Snapshot() *Snapshot { return f.snapshot }

// Apply applies a transaction like [Store.Apply] and returns the changes.
func (f *Fork) Apply(tx *statev1.Transaction) ([]Change, error) {
	changes, _, err := f.ApplyParts(tx)
	return changes, err
}

// ApplyParts is Apply for a transaction with parts that may be left out.
func (f *Fork) ApplyParts(tx *statev1.Transaction) ([]Change, Result, error) {
	entry := Entry{Index: f.snapshot.index + 1, Transaction: tx}
	b := newBuilder(f.snapshot)
	if err := b.check(entry); err != nil {
		return nil, Result{}, err
	}
	result, err := b.apply(entry)
	if err != nil {
		return nil, Result{}, err
	}
	f.snapshot = b.finish()
	return b.changes, result, nil
}
