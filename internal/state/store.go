package state

import (
	"fmt"
	"sync"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// Store holds the newest state and applies transactions to it, one after the other.
type Store struct {
	mu   sync.Mutex // held while the next state is built
	feed feed
}

// Entry is a transaction with its position in the log.
type Entry struct {
	// Index is the position in the log. It is larger than that of the entry before. Entries that are applied together
	// may share one, because a log entry can hold several transactions.
	Index       uint64
	Transaction *statev1.Transaction
	// Valid means that the transaction passed [Validate] and has not changed since.
	Valid bool
}

// Outcome is the outcome of one entry.
type Outcome struct {
	Result Result
	Err    error
}

// Result says what a transaction did.
type Result struct {
	// Index is the transaction's position in the log, and the version of every object that it put.
	Index uint64
	// Objects has one element for each change: the object that was put, deleted or checked. It is nil if there was
	// nothing to delete or check, or if the change was left out.
	Objects []Object
	// LeftOut are the parts that were left out, and why. It is nil if there are none.
	LeftOut map[uint32]error
}

// New returns an empty store.
func New() *Store {
	s := &Store{}
	s.feed.newest.Store(&Snapshot{rows: emptyRows(), counts: make([]int, len(tables))})
	return s
}

// Snapshot returns the newest state.
func (s *Store) Snapshot() *Snapshot { return s.feed.newest.Load() }

// Apply applies one transaction: all of its changes or none, except for parts that were left out. The transaction's
// messages belong to the store afterwards. A refusal is a [*ConflictError], an [*ExistsError] or a [*NotFoundError]. An
// [*InvalidError] means that this release does not understand the transaction, and that the store's index stays the same.
func (s *Store) Apply(index uint64, tx *statev1.Transaction) (Result, error) {
	outcome := s.ApplyAll([]Entry{{Index: index, Transaction: tx}})[0]
	return outcome.Result, outcome.Err
}

// ApplyAll applies entries like [Store.Apply] and publishes the result once. It stops at the first invalid entry. That
// entry and all later ones return the same [*InvalidError].
func (s *Store) ApplyAll(entries []Entry) []Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := newBuilder(s.Snapshot())
	outcomes := make([]Outcome, len(entries))
	var invalid error
	for i, entry := range entries {
		if invalid == nil {
			invalid = b.check(entry)
		}
		if outcomes[i].Err = invalid; invalid == nil {
			outcomes[i].Result, outcomes[i].Err = b.apply(entry)
		}
	}
	s.feed.publish(b.finish(), b.changes)
	return outcomes
}

// check returns an [*InvalidError] if an entry cannot be applied.
func (b *builder) check(entry Entry) error {
	if entry.Index <= b.before || entry.Index < b.index {
		return &InvalidError{Change: -1, Reason: fmt.Sprintf(
			"has the index %d, but the state is at %d already", entry.Index, b.index)}
	}
	if entry.Valid {
		return nil
	}
	return Validate(entry.Transaction)
}
