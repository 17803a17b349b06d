package consensus

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/hashicorp/raft"
)

// Server is a member of the cluster.
type Server struct {
	ID, Address string
	// Voter is whether its vote counts.
	Voter bool
}

// Servers returns all servers of the cluster, as far as this one knows.
func (g *Group) Servers() []Server {
	return serversOf(g.raft.GetConfiguration().Configuration())
}

func serversOf(c raft.Configuration) (servers []Server) {
	for _, s := range c.Servers {
		servers = append(servers, Server{ID: string(s.ID), Address: plainAddress(s.Address), Voter: s.Suffrage == raft.Voter})
	}
	return servers
}

// Stats are figures about this server, for metrics.
type Stats struct {
	// State is "follower", "candidate", "leader" or "shutdown".
	State string
	Term  uint64
	// LastIndex was written, CommitIndex is on a majority of disks, AppliedIndex is in the state, SnapshotIndex in the
	// newest snapshot.
	LastIndex, CommitIndex, AppliedIndex, SnapshotIndex uint64
}

// Stats returns the newest figures.
func (g *Group) Stats() Stats {
	all := g.raft.Stats()
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(all[name], 10, 64) // raft formats them itself
		return n
	}
	return Stats{
		State: stateName(g.raft.State()), Term: number("term"),
		LastIndex: number("last_log_index"), CommitIndex: number("commit_index"),
		AppliedIndex: number("applied_index"), SnapshotIndex: number("last_snapshot_index"),
	}
}

func stateName(s raft.RaftState) string {
	switch s {
	case raft.Follower:
		return "follower"
	case raft.Candidate:
		return "candidate"
	case raft.Leader:
		return "leader"
	}
	return "shutdown"
}

// Snapshot writes a snapshot now and shortens the log. Nothing to write is no error.
func (g *Group) Snapshot(ctx context.Context) error {
	taken := make(chan error, 1)
	if !g.start(func() { taken <- g.raft.Snapshot().Error() }) {
		return g.stopped()
	}
	select {
	case err := <-taken:
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return fmt.Errorf("take a snapshot: %w", g.translate(err))
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
