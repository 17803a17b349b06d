package consensus

import (
	"context"
	"fmt"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// MaxTransaction is the size in bytes of the largest transaction.
const MaxTransaction = 8 << 20

// Propose makes the changes of a transaction. When it returns without error they are durable and part of every snapshot
// that is taken from then on. Refusals by the state are returned unchanged (see [state.Store.Apply]). A
// [NotLeaderError] says that nothing has happened. [ErrUncertain] says that something may have, also if ctx ended
// before the outcome was known. A [FullError] refuses before the disk does. The transaction and its messages belong to
// the state from then on, unless it refused them.
func (c *Consensus) Propose(ctx context.Context, tx *statev1.Transaction) (result state.Result, err error) {
	began := time.Now()
	defer func() { c.observer.Proposed(resultOf(err), time.Since(began)) }()
	if err := state.Validate(tx); err != nil {
		return state.Result{}, err
	}
	data, err := tx.MarshalVT()
	if err != nil {
		return state.Result{}, fmt.Errorf("encode the change: %w", err)
	}
	if len(data) > MaxTransaction {
		return state.Result{}, &TooLargeError{Size: len(data)}
	}
	if err := c.room.check(len(data)); err != nil {
		return state.Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return state.Result{}, context.Cause(ctx)
	}
	p := proposal{tx: tx, data: data, outcome: make(chan state.Outcome, 1)}
	if !c.submit(p) {
		return state.Result{}, c.stopped()
	}
	select {
	case o := <-p.outcome:
		return o.Result, o.Err
	case <-ctx.Done():
		return state.Result{}, fmt.Errorf("%w: %w", context.Cause(ctx), ErrUncertain)
	}
}

// start runs something that takes a while unless this server is stopping.
func (c *Consensus) start(proposal func()) bool {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.closed {
		return false
	}
	c.proposals.Go(proposal)
	return true
}

// Read returns a snapshot that includes every change that was acknowledged before, on any server, unless ctx allows a
// stale read (see [WithStale]).
func (c *Consensus) Read(ctx context.Context) (*state.Snapshot, error) {
	if IsStale(ctx) {
		return c.Stale(), nil
	}
	for {
		term, change, err := c.leads(ctx)
		if err != nil {
			return nil, err
		}
		if err := c.verify(ctx); err != nil {
			return nil, err
		}
		// As long as no other server can have been elected, everything acknowledged was applied here. Leading is not
		// enough: another server may have led in between, which this one has not noticed yet.
		if c.raft.CurrentTerm() == term.number {
			return c.store.Snapshot(), nil
		}
		if err := c.await(ctx, change); err != nil {
			return nil, err
		}
	}
}

// verify asks the others whether this server still leads.
func (c *Consensus) verify(ctx context.Context) error {
	verified := make(chan error, 1)
	if !c.start(func() { verified <- c.raft.VerifyLeader().Error() }) {
		return c.stopped()
	}
	select {
	case err := <-verified:
		if err != nil {
			return c.readError(err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leads waits until a server that has just been elected has the newest state. It returns its term and a channel that is
// closed when there may be another.
func (c *Consensus) leads(ctx context.Context) (*term, <-chan struct{}, error) {
	for {
		term, change := c.leadership.now()
		if term != nil {
			return term, change, nil
		}
		if leader, _ := c.Leader(); leader.ID != c.id {
			return nil, nil, &NotLeaderError{Leader: leader}
		}
		if err := c.await(ctx, change); err != nil {
			return nil, nil, err
		}
	}
}

// Stale returns this server's state, which may be behind what others have acknowledged.
func (c *Consensus) Stale() *state.Snapshot { return c.store.Snapshot() }
