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
	response, err := c.Agree(ctx, Proposal{Data: data, Value: tx})
	if err != nil {
		return state.Result{}, err
	}
	return response.(state.Result), nil
}

// Agree has a proposal applied and returns the machine's response to it. Its errors are those of [Consensus.Propose],
// and the machine's.
func (g *Group) Agree(ctx context.Context, p Proposal) (any, error) {
	if len(p.Data) > MaxTransaction {
		return nil, &TooLargeError{Size: len(p.Data)}
	}
	if err := g.room.check(len(p.Data)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	w := waiting{Proposal: p, outcome: make(chan Outcome, 1)}
	if !g.submit(w) {
		return nil, g.stopped()
	}
	select {
	case o := <-w.outcome:
		return o.Response, o.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", context.Cause(ctx), ErrUncertain)
	}
}

// start runs something that takes a while unless this server is stopping.
func (g *Group) start(proposal func()) bool {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if g.closed {
		return false
	}
	g.proposals.Go(proposal)
	return true
}

// Read returns a snapshot that includes every change that was acknowledged before, on any server, unless ctx allows a
// stale read (see [WithStale]).
func (c *Consensus) Read(ctx context.Context) (*state.Snapshot, error) {
	if IsStale(ctx) {
		return c.Stale(), nil
	}
	if _, err := c.Confirm(ctx); err != nil {
		return nil, err
	}
	return c.store.Snapshot(), nil
}

// Confirm returns an index up to which this server, which leads, has applied everything that was acknowledged before,
// on any server.
func (g *Group) Confirm(ctx context.Context) (uint64, error) {
	for {
		term, change, err := g.leads(ctx)
		if err != nil {
			return 0, err
		}
		index := g.machine.Applied()
		if err := g.verify(ctx); err != nil {
			return 0, err
		}
		// As long as no other server can have been elected, everything acknowledged was applied here. Leading is not
		// enough: another server may have led in between, which this one has not noticed yet.
		if g.raft.CurrentTerm() == term.number {
			return index, nil
		}
		if err := g.await(ctx, change); err != nil {
			return 0, err
		}
	}
}

// verify asks the others whether this server still leads.
func (g *Group) verify(ctx context.Context) error {
	verified := make(chan error, 1)
	if !g.start(func() { verified <- g.raft.VerifyLeader().Error() }) {
		return g.stopped()
	}
	select {
	case err := <-verified:
		if err != nil {
			return g.readError(err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leads waits until a server that has just been elected has the newest state. It returns its term and a channel that is
// closed when there may be another.
func (g *Group) leads(ctx context.Context) (*term, <-chan struct{}, error) {
	for {
		term, change := g.leadership.now()
		if term != nil {
			return term, change, nil
		}
		if leader, _ := g.Leader(); leader.ID != g.id {
			return nil, nil, &NotLeaderError{Leader: leader}
		}
		if err := g.await(ctx, change); err != nil {
			return nil, nil, err
		}
	}
}

// Stale returns this server's state, which may be behind what others have acknowledged.
func (c *Consensus) Stale() *state.Snapshot { return c.store.Snapshot() }
