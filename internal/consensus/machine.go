package consensus

import (
	"io"
	"sync"
)

// Machine is what a group applies its log to. It is also a [SavedMachine] or a [DiskMachine].
type Machine interface {
	// Apply applies committed entries in their order and returns a response to each. After an error, which says what the
	// next entry needs, this server stops: its state must not diverge from that of the others. It is called by one
	// goroutine.
	Apply(entries []Entry) (responses []any, err error)
	// Applied is the index of the newest entry that was applied.
	Applied() uint64
	// Join encodes the first of several proposals as one entry and returns how many it took.
	Join(proposals []Proposal) (data []byte, taken int)
	// Split returns the outcome of each of the proposals that were joined, from the response to their entry; nothing if it
	// cannot.
	Split(proposals []Proposal, response any) []Outcome
}

// SavedMachine lives in memory. Snapshots contain all of it, and after a start it begins with the newest one.
type SavedMachine interface {
	Machine
	// Save returns a function that writes the state as it is now, while more entries are applied.
	Save() func(io.Writer) error
	Restore(io.Reader) error
}

// DiskMachine keeps its state in files of its own. After a start it continues from there: it must skip entries that it
// has applied before. It need not sync what it applies, because the log is only shortened after Flush.
type DiskMachine interface {
	Machine
	// Flush makes everything durable that was applied before it was called.
	Flush() error
	// Checkpoint writes a copy to a new folder and returns the index of the newest entry in it. Entries are applied
	// meanwhile.
	Checkpoint(dir string) (uint64, error)
	// Restore replaces everything by a copy of a server that was ahead. The folder is gone afterwards.
	Restore(dir string) error
}

// Entry is a committed entry of the log.
type Entry struct {
	Index uint64
	Data  []byte
}

// Proposal is what a caller wants to be applied.
type Proposal struct {
	// Data is its encoded form.
	Data []byte
	// Value is for the machine of this server; it may be nil.
	Value any
}

// Outcome is what became of a proposal.
type Outcome struct {
	Response any
	Err      error
}

// remembering is a machine that remembers the entries that it has joined until they are answered, applied or not.
type remembering interface{ forget(data []byte) }

// applied tells goroutines that entries were applied. Its zero value is ready.
type applied struct {
	mu     sync.Mutex
	change chan struct{} // nil if nobody waits
}

func (a *applied) next() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.change == nil {
		a.change = make(chan struct{})
	}
	return a.change
}

func (a *applied) broadcast() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.change != nil {
		close(a.change)
		a.change = nil
	}
}
