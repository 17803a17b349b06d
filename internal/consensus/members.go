package consensus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// Add lets a server receive the log, without a vote. If it is this server, it gets the new address.
func (c *Consensus) Add(ctx context.Context, s Server) error {
	return c.change(ctx, "add server "+s.ID, func() raft.Future {
		return c.raft.AddNonvoter(raft.ServerID(s.ID), raft.ServerAddress(s.Address), 0, 0)
	})
}

// Remove removes a server: it no longer votes or receives the log.
func (c *Consensus) Remove(ctx context.Context, id string) error {
	return c.change(ctx, "remove server "+id, func() raft.Future {
		return c.raft.RemoveServer(raft.ServerID(id), 0, 0)
	})
}

// transferAttempts is how often a server is asked to take over: raft gives it half a second each time, which a busy
// machine may exceed.
const transferAttempts = 5

// Transfer transfers leadership to the server with the id, or to the most up-to-date one if it is empty. When it
// returns without error, another server leads or is just being elected.
func (c *Consensus) Transfer(ctx context.Context, to string) (err error) {
	if !c.IsLeader() {
		return c.translate(raft.ErrNotLeader)
	}
	for range transferAttempts {
		if err = c.transfer(ctx, to); err == nil || !c.IsLeader() {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

func (c *Consensus) transfer(ctx context.Context, to string) error {
	return c.change(ctx, "let another server lead", func() raft.Future {
		if to == "" {
			return c.raft.LeadershipTransfer()
		}
		for _, s := range c.raft.GetConfiguration().Configuration().Servers {
			if string(s.ID) == to {
				return c.raft.LeadershipTransferToServer(s.ID, s.Address)
			}
		}
		return failed{fmt.Errorf("server %s is not one of those that agree", to)}
	})
}

type failed struct{ err error }

func (f failed) Error() error { return f.err }

// change waits for a change of the members, as long as ctx allows.
func (c *Consensus) change(ctx context.Context, what string, begin func() raft.Future) error {
	done := make(chan error, 1)
	if !c.start(func() { done <- begin().Error() }) {
		return c.stopped()
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, c.translate(err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

// Leave prepares the stop of this server: if it leads, another one takes over, and a snapshot spares the next start
// most of the log. Failures are only logged: a server that stops must stop.
func (c *Consensus) Leave(ctx context.Context) {
	if c.IsLeader() && c.otherVoters() > 0 {
		if err := c.Transfer(ctx, ""); err != nil {
			c.logger.Warn("no other server took over; the others will elect one", "error", err)
		}
	}
	if err := c.Snapshot(ctx); err != nil && !errors.Is(err, ErrShutdown) {
		c.logger.Warn("no snapshot at the end; the next start takes longer", "error", err)
	}
}

func (c *Consensus) otherVoters() (n int) {
	for _, s := range c.Servers() {
		if s.Voter && s.ID != c.id {
			n++
		}
	}
	return n
}

// Progress is how far a server is.
type Progress struct {
	// LastTerm and LastIndex are of the newest entry in its log, AppliedIndex of the newest in its state.
	LastTerm, LastIndex, AppliedIndex uint64
	// LastContact is how long ago it heard from the leader, 0 for the leader itself, negative for never.
	LastContact time.Duration
	// Full is whether its disk has no room for changes.
	Full bool
	// Skew is by how much its clock is ahead of the asking server's.
	Skew time.Duration
}

// Progress is how far this server is.
func (c *Consensus) Progress() Progress {
	stats := c.raft.Stats()
	term, _ := strconv.ParseUint(stats["last_log_term"], 10, 64) // raft formats it itself
	p := Progress{
		LastTerm: term, LastIndex: c.raft.LastIndex(), AppliedIndex: c.store.Snapshot().Index(), Full: c.room.check(0) != nil,
	}
	if c.raft.State() != raft.Leader {
		if p.LastContact = -1; !c.raft.LastContact().IsZero() {
			p.LastContact = time.Since(c.raft.LastContact())
		}
	}
	return p
}

// Term returns a context that ends with ctx or when this server no longer leads, then with [ErrNotLeader] as its cause.
// It fails if this server does not lead; it waits for one that was just elected.
func (c *Consensus) Term(ctx context.Context) (context.Context, context.CancelFunc, error) {
	term, _, err := c.leads(ctx)
	if err != nil {
		return nil, nil, err
	}
	during, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(term.ctx, func() { cancel(context.Cause(term.ctx)) })
	return during, func() {
		stop()
		cancel(nil)
	}, nil
}

// Changed returns a channel that is closed when the leader may have changed.
func (c *Consensus) Changed() <-chan struct{} {
	_, change := c.leadership.now()
	return change
}

// ID is this server's.
func (c *Consensus) ID() string { return c.id }
