package consensus

import (
	"errors"
	"fmt"
	"io"

	"github.com/cloudless/cloudless/internal/state"
)

// transactions is the machine of the control group: it hands transactions to the state.
type transactions struct {
	store *state.Store
	// proposed are this server's transactions in flight, so that it need not decode what it has encoded itself.
	proposed proposed
}

var _ SavedMachine = (*transactions)(nil)

// Apply implements Machine. It responds with a []state.Outcome to each entry that it understands, one for each of its
// transactions.
func (t *transactions) Apply(logged []Entry) ([]any, error) {
	entries := make([]state.Entry, 0, len(logged))
	ends := make([]int, 0, len(logged)) // of each entry's transactions
	for _, e := range logged {
		decoded, here, err := t.proposed.decode(e.Data)
		if err != nil {
			// Those before it are intact and still have to be applied.
			responses, earlier := t.applyAll(entries, ends)
			if earlier == nil {
				earlier = notUnderstood(e.Index, err)
			}
			return responses, earlier
		}
		for _, tx := range decoded {
			entries = append(entries, state.Entry{Index: e.Index, Transaction: tx, Valid: here})
		}
		ends = append(ends, len(entries))
	}
	return t.applyAll(entries, ends)
}

func (t *transactions) applyAll(entries []state.Entry, ends []int) ([]any, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	outcomes := t.store.ApplyAll(entries)
	responses := make([]any, 0, len(ends))
	begin := 0
	for _, end := range ends {
		for at := begin; at < end; at++ {
			if _, invalid := errors.AsType[*state.InvalidError](outcomes[at].Err); invalid {
				return responses, notUnderstood(entries[at].Index, outcomes[at].Err)
			}
		}
		responses = append(responses, outcomes[begin:end:end])
		begin = end
	}
	return responses, nil
}

func notUnderstood(index uint64, reason error) error {
	return fmt.Errorf("the log entry %d is not understood, a newer release must have written it: update this server: %w", index, reason)
}

// Applied implements Machine.
func (t *transactions) Applied() uint64 { return t.store.Snapshot().Index() }

// Save implements SavedMachine.
func (t *transactions) Save() func(io.Writer) error { return t.store.Snapshot().Save }

// Restore implements SavedMachine.
func (t *transactions) Restore(from io.Reader) error { return t.store.Restore(from) }

// Split implements Machine.
func (t *transactions) Split(_ []Proposal, response any) []Outcome {
	applied, _ := response.([]state.Outcome)
	outcomes := make([]Outcome, len(applied))
	for i, o := range applied {
		outcomes[i] = Outcome{Response: o.Result, Err: o.Err}
	}
	return outcomes
}
