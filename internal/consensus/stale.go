package consensus

import (
	"context"
	"errors"

	"github.com/hashicorp/raft"
)

type staleKey struct{}

// WithStale lets [Consensus.Read] be answered by what this server knows, which may be behind, without asking the
// others.
func WithStale(ctx context.Context) context.Context { return context.WithValue(ctx, staleKey{}, true) }

// IsStale tells if ctx comes from [WithStale].
func IsStale(ctx context.Context) bool { return ctx.Value(staleKey{}) != nil }

// WaitApplied waits until this server's state includes the transaction with an index.
func (c *Consensus) WaitApplied(ctx context.Context, index uint64) error {
	_, err := c.store.Await(ctx, index)
	return err
}

// unread is why a read failed: one that was begun by a leader and not finished has done nothing, unlike a proposal.
func (c *Consensus) unread(err error) error {
	if errors.Is(err, raft.ErrLeadershipLost) {
		leader, _ := c.Leader()
		return &NotLeaderError{Leader: leader}
	}
	return c.translate(err)
}
