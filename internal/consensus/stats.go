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
func (c *Consensus) Servers() []Server {
	return serversOf(c.raft.GetConfiguration().Configuration())
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
func (c *Consensus) Stats() Stats {
	all := c.raft.Stats()
	number := func(name string) uint64 {
		n, _ := strconv.ParseUint(all[name], 10, 64) // raft formats them itself
		return n
	}
	return Stats{
		State: stateName(c.raft.State()), Term: number("term"),
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
func (c *Consensus) Snapshot(ctx context.Context) error {
	taken := make(chan error, 1)
	if !c.start(func() { taken <- c.raft.Snapshot().Error() }) {
		return c.stopped()
	}
	select {
	case err := <-taken:
		if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			return fmt.Errorf("take a snapshot: %w", c.translate(err))
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
