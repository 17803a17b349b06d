// Package assignment is what a leader tells a node of its replicas, and what it
// believes of what the node reports: the part of the agents' protocol that is
// pure. It guarantees that what a node says counts only for replicas that are
// the node's own and have not ended.
//
// It knows nothing of streams, sessions, logins or the log.
package assignment

import (
	"cmp"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Full is everything that a node must know.
func Full(snap *state.Snapshot, node string) *v1.Assignments {
	message := &v1.Assignments{Epoch: snap.Cluster().GetStatus().GetEpoch(), Full: true, Node: snap.Node(node).GetSpec()}
	for r := range snap.ReplicasOn(node) {
		if Holds(r, node) {
			message.Assign = append(message.Assign, assign(snap, r))
		}
	}
	return message
}

// News is what a node must know about replicas that may have changed, nil if
// there are none.
func News(snap *state.Snapshot, node string, replicas []string) *v1.Assignments {
	if len(replicas) == 0 {
		return nil
	}
	message := &v1.Assignments{Epoch: snap.Cluster().GetStatus().GetEpoch()}
	for _, uid := range replicas {
		if r := snap.Replica(uid); Holds(r, node) {
			message.Assign = append(message.Assign, assign(snap, r))
		} else {
			message.Remove = append(message.Remove, uid)
		}
	}
	return message
}

func assign(snap *state.Snapshot, r *v1.Replica) *v1.Assignment {
	return &v1.Assignment{Replica: r, Revision: snap.Revision(r.GetSpec().GetRevisionUid())}
}

// Holds reports whether a node has to keep a replica, which may be nil.
func Holds(r *v1.Replica, node string) bool {
	return r != nil && r.GetSpec().GetNodeUid() == node && spec.Live(r.GetStatus().GetPhase())
}

// Concerned are the replica that a change is of and the nodes for which it means
// something: a new status alone came from the agent itself and is no news to it.
func Concerned(before, after *v1.Replica) (uid string, nodes []string) {
	uid = cmp.Or(after.GetMetadata().GetUid(), before.GetMetadata().GetUid())
	was, is := before.GetSpec().GetNodeUid(), after.GetSpec().GetNodeUid()
	if before != nil && after != nil && sameSpec(before.GetSpec(), after.GetSpec()) &&
		spec.Live(before.GetStatus().GetPhase()) == spec.Live(after.GetStatus().GetPhase()) {
		return uid, nil
	}
	if was != "" {
		nodes = append(nodes, was)
	}
	if is != "" && is != was {
		nodes = append(nodes, is)
	}
	return uid, nodes
}

func sameSpec(before, after *v1.ReplicaSpec) bool {
	return before == after || proto.Equal(before, after) // a report leaves the very same one
}

// Reported is a replica after a node has reported a status of it, nil if that
// changes nothing: the replica is not the node's, or has ended already. When it
// ended is by the clock of the leader, not of the node; why it was told to stop is
// the leader's to say, too.
func Reported(old *v1.Replica, node string, status *v1.ReplicaStatus, now time.Time) *v1.Replica {
	if !Holds(old, node) || status.GetPhase() == "" {
		return nil
	}
	if why := old.GetSpec().GetStopReason(); why != "" && status.GetReason() == "" {
		status = proto.CloneOf(status) // the node does not know why
		status.Reason = why
	}
	if status.GetEndTime() != nil && spec.Live(status.GetPhase()) {
		status = proto.CloneOf(status) // it has begun again
		status.EndTime = nil
	}
	if proto.Equal(old.GetStatus(), status) {
		return nil
	}
	r := state.RenewReplica(old, proto.CloneOf(status))
	if spec.Ended(r.GetStatus().GetPhase()) {
		r.Status.EndTime = timestamppb.New(now)
	}
	return r
}
