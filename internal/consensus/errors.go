package consensus

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

var (
	// ErrNotLeader matches every [NotLeaderError].
	ErrNotLeader = errors.New("this server is not the leader")
	// ErrFull matches every [FullError], also that of another server.
	ErrFull = errors.New("the server that leads has no space left on its disk")
	// ErrUncertain says that a proposal may or may not have been applied.
	ErrUncertain = errors.New("it is not known whether the change was made: read again before you repeat it")
	// ErrShutdown says that this server has stopped.
	ErrShutdown = errors.New("this server is shutting down: ask another one, or again after its restart")
)

// NotLeaderError refuses what only a leader may do. Nothing has happened: it may be retried elsewhere.
type NotLeaderError struct {
	// Leader is empty if no leader is known.
	Leader Server
}

func (e *NotLeaderError) Error() string {
	if e.Leader.ID == "" {
		return "this server is not the leader and knows of none: try again when one has been elected"
	}
	return fmt.Sprintf("this server is not the leader: ask the server %s at %s", e.Leader.ID, e.Leader.Address)
}

// Is makes every NotLeaderError an [ErrNotLeader].
func (e *NotLeaderError) Is(target error) bool { return target == ErrNotLeader }

// TooLargeError refuses a transaction that would delay all others.
type TooLargeError struct {
	Size int
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the change has %d bytes, the largest one allowed has %d: divide it", e.Size, MaxTransaction)
}

// translate converts errors of raft.
func (g *Group) translate(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		leader, _ := g.Leader()
		return &NotLeaderError{Leader: leader}
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrAbortedByRestore):
		return fmt.Errorf("%w: %w", err, ErrUncertain)
	case errors.Is(err, raft.ErrRaftShutdown):
		return g.stopped()
	}
	return err
}
