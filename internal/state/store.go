package state

import (
	"fmt"
	"sync"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Store holds the newest state and makes changes to it, one transaction after the other.
type Store struct {
	mu   sync.Mutex // held by the one who makes the next state
	feed feed
}

// Entry is a transaction in its place in the log.
type Entry struct {
	// Index is larger than that of every entry before it, or the same as that of the one before it which is applied
	// together with it: then both share a place in the log.
	Index       uint64
	Transaction *statev1.Transaction
	// Valid says that the transaction passed [Validate] and was not changed since.
	Valid bool
}

// Outcome is what became of one entry.
type Outcome struct {
	Result Result
	Err    error
}

// Result tells what a transaction did.
type Result struct {
	// Index is the transaction's place in the log and the version of all that it put.
	Index uint64
	// Objects has one for each change, in their order: what was put, what was deleted or what was checked; nil if
	// there was nothing to delete or check, or if the change was left out.
	Objects []Object
	// LeftOut are the parts of which nothing came, and why. It is nil where everything was done.
	LeftOut map[uint32]error
}

// New returns an empty store.
func New() *Store {
	s := &Store{}
	s.feed.newest.Store(&Snapshot{rows: noRows(), counts: make([]int, len(tables))})
	return s
}

// Snapshot returns the newest state.
func (s *Store) Snapshot() *Snapshot { return s.feed.newest.Load() }

// Apply makes the changes of one transaction, all of them or none, but for the parts that can be left out. It owns the transaction's messages from then on.
// A refusal is a [*ConflictError], an [*ExistsError] or a [*NotFoundError]; one by [*InvalidError] means that the
// transaction was not understood and that the store stays where it was.
func (s *Store) Apply(index uint64, tx *statev1.Transaction) (Result, error) {
	outcome := s.ApplyAll([]Entry{{Index: index, Transaction: tx}})[0]
	return outcome.Result, outcome.Err
}

// ApplyAll does what [Store.Apply] does for each entry, and shows the results to readers at once. From an entry on
// that is not understood nothing is applied, and every outcome is that [*InvalidError].
func (s *Store) ApplyAll(entries []Entry) []Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := newWork(s.Snapshot())
	outcomes := make([]Outcome, len(entries))
	var invalid error
	for i, entry := range entries {
		if invalid == nil {
			invalid = w.understand(entry)
		}
		if outcomes[i].Err = invalid; invalid == nil {
			outcomes[i].Result, outcomes[i].Err = w.apply(entry)
		}
	}
	s.feed.publish(w.finish(), w.changes)
	return outcomes
}

func (w *work) understand(entry Entry) error {
	if entry.Index <= w.before || entry.Index < w.index {
		return &InvalidError{Change: -1, Reason: fmt.Sprintf(
			"has the index %d, but the state is at %d already", entry.Index, w.index)}
	}
	if entry.Valid {
		return nil
	}
	return Validate(entry.Transaction)
}
