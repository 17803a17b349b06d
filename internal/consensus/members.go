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
func (g *Group) Add(ctx context.Context, s Server) error {
	return g.change(ctx, "add server "+s.ID, func() raft.Future {
		return g.raft.AddNonvoter(raft.ServerID(s.ID), raft.ServerAddress(s.Address), 0, 0)
	})
}

// Remove removes a server: it no longer votes or receives the log.
func (g *Group) Remove(ctx context.Context, id string) error {
	return g.change(ctx, "remove server "+id, func() raft.Future {
		return g.raft.RemoveServer(raft.ServerID(id), 0, 0)
	})
}

// transferAttempts is how often a server is asked to take over: raft gives it half a second each time, which a busy
// machine may exceed.
const transferAttempts = 5

// Transfer transfers leadership to the server with the id, or to the most up-to-date one if it is empty. When it
// returns without error, another server leads or is just being elected.
func (g *Group) Transfer(ctx context.Context, to string) (err error) {
	if !g.IsLeader() {
		return g.translate(raft.ErrNotLeader)
	}
	for range transferAttempts {
		if err = g.transfer(ctx, to); err == nil || !g.IsLeader() {
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

func (g *Group) transfer(ctx context.Context, to string) error {
	return g.change(ctx, "let another server lead", func() raft.Future {
		if to == "" {
			return g.raft.LeadershipTransfer()
		}
		for _, s := range g.raft.GetConfiguration().Configuration().Servers {
			if string(s.ID) == to {
				return g.raft.LeadershipTransferToServer(s.ID, s.Address)
			}
		}
		return failed{fmt.Errorf("server %s is not one of those that agree", to)}
	})
}

type failed struct{ err error }

func (f failed) Error() error { return f.err }

// change waits for a change of the members, as long as ctx allows.
func (g *Group) change(ctx context.Context, what string, begin func() raft.Future) error {
	done := make(chan error, 1)
	if !g.start(func() { done <- begin().Error() }) {
		return g.stopped()
	}
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("%s: %w", what, g.translate(err))
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
}

// Leave prepares the stop of this server: if it leads, another one takes over, and a snapshot spares the next start
// most of the log. Failures are only logged: a server that stops must stop.
func (g *Group) Leave(ctx context.Context) {
	if g.IsLeader() && g.otherVoters() > 0 {
		if err := g.Transfer(ctx, ""); err != nil {
			g.logger.Warn("no other server took over; the others will elect one", "error", err)
		}
	}
	if err := g.Snapshot(ctx); err != nil && !errors.Is(err, ErrShutdown) {
		g.logger.Warn("no snapshot at the end; the next start takes longer", "error", err)
	}
}

func (g *Group) otherVoters() (n int) {
	for _, s := range g.Servers() {
		if s.Voter && s.ID != g.id {
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
func (g *Group) Progress() Progress {
	stats := g.raft.Stats()
	term, _ := strconv.ParseUint(stats["last_log_term"], 10, 64) // raft formats it itself
	p := Progress{
		LastTerm: term, LastIndex: g.raft.LastIndex(), AppliedIndex: g.machine.Applied(), Full: g.room.check(0) != nil,
	}
	if g.raft.State() != raft.Leader {
		if p.LastContact = -1; !g.raft.LastContact().IsZero() {
			p.LastContact = time.Since(g.raft.LastContact())
		}
	}
	return p
}

// Term returns a context that ends with ctx or when this server no longer leads, then with [ErrNotLeader] as its cause.
// It fails if this server does not lead; it waits for one that was just elected.
func (g *Group) Term(ctx context.Context) (context.Context, context.CancelFunc, error) {
	term, _, err := g.leads(ctx)
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
func (g *Group) Changed() <-chan struct{} {
	_, change := g.leadership.now()
	return change
}

// ID is this server's.
func (g *Group) ID() string { return g.id }
