package consensus

import (
	"context"
	"errors"

	"github.com/hashicorp/raft"
)

type staleKey struct{}

// WithStale lets [Consensus.Read] answer from this server's state, which may be behind, without asking the others.
func WithStale(ctx context.Context) context.Context { return context.WithValue(ctx, staleKey{}, true) }

// IsStale reports whether ctx comes from [WithStale].
func IsStale(ctx context.Context) bool { return ctx.Value(staleKey{}) != nil }

// WaitApplied waits until this server's machine has applied the entry with an index.
func (g *Group) WaitApplied(ctx context.Context, index uint64) error {
	for {
		next := g.fsm.applied.next()
		if g.machine.Applied() >= index {
			return nil
		}
		if err := g.await(ctx, next); err != nil {
			return err
		}
	}
}

// WaitApplied waits until this server's state includes the transaction with an index.
func (c *Consensus) WaitApplied(ctx context.Context, index uint64) error {
	_, err := c.store.Await(ctx, index)
	return err
}

// readError is why a read failed: unlike a proposal, an unfinished read has changed nothing.
func (g *Group) readError(err error) error {
	if errors.Is(err, raft.ErrLeadershipLost) {
		leader, _ := g.Leader()
		return &NotLeaderError{Leader: leader}
	}
	return g.translate(err)
}
