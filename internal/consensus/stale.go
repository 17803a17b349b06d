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

// WaitApplied waits until this server's state includes the transaction with an index.
func (c *Consensus) WaitApplied(ctx context.Context, index uint64) error {
	_, err := c.store.Await(ctx, index)
	return err
}

// readError is why a read failed: unlike a proposal, an unfinished read has changed nothing.
func (c *Consensus) readError(err error) error {
	if errors.Is(err, raft.ErrLeadershipLost) {
		leader, _ := c.Leader()
		return &NotLeaderError{Leader: leader}
	}
	return c.translate(err)
}
