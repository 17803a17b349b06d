package placement

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Predecessor is the replica that makes way for one without a node. It is nil if there is
// none or it was deleted.
func Predecessor(snap *state.Snapshot, r *v1.Replica) *v1.Replica {
	if r.GetSpec().GetSucceeds() == "" || r.GetSpec().GetNodeUid() != "" {
		return nil
	}
	return snap.Replica(r.GetSpec().GetSucceeds())
}

// Awaits reports whether a replica waits for its predecessor to end.
func Awaits(snap *state.Snapshot, r *v1.Replica) bool {
	old := Predecessor(snap, r)
	return old != nil && !spec.Ended(old.GetStatus().GetPhase())
}

// Promised is the node with room for a replica that has no node: its reserved node, or that
// of its ended predecessor unless that was preempted or evicted. It is empty if there is
// none.
func Promised(snap *state.Snapshot, r *v1.Replica) string {
	if r.GetSpec().GetReservedNodeUid() != "" {
		return r.GetSpec().GetReservedNodeUid()
	}
	if old := Predecessor(snap, r); spec.Ended(old.GetStatus().GetPhase()) && old.GetSpec().GetStopReason() == "" {
		return old.GetSpec().GetNodeUid()
	}
	return ""
}

// putSuccessor updates the successor of a replica that has changed, and forgets it if it no
// longer waits.
func (c *Model) putSuccessor(snap *state.Snapshot, old *v1.Replica) {
	uid := old.GetMetadata().GetUid()
	successor, known := c.Successors[uid]
	if !known {
		return
	}
	if r := snap.Replica(successor); r.GetSpec().GetSucceeds() == uid && !spec.Ended(r.GetStatus().GetPhase()) {
		c.Put(snap, r)
	} else {
		delete(c.Successors, uid)
	}
}

// putPredecessor updates the predecessor of a replica.
func (c *Model) putPredecessor(snap *state.Snapshot, r *v1.Replica) {
	if r.GetSpec().GetSucceeds() == "" {
		return // nearly always
	}
	if old := snap.Replica(r.GetSpec().GetSucceeds()); old != nil && old.GetSpec().GetNodeUid() != "" {
		c.Put(snap, old)
	}
}

// noteSuccessor remembers that a replica waits for the room of its predecessor.
func (c *Model) noteSuccessor(r *v1.Replica) {
	if old := r.GetSpec().GetSucceeds(); old != "" && !spec.Ended(r.GetStatus().GetPhase()) {
		c.Successors[old] = r.GetMetadata().GetUid()
	}
}

// standingOfPromised is the standing of a replica without a node.
func standingOfPromised(r *v1.Replica) scheduler.Standing {
	if r.GetSpec().GetReservedNodeUid() != "" {
		return scheduler.Reserved
	}
	return scheduler.Inherited
}
