// Package assignment computes a node's assignments and decides which of its reports
// count. A report counts only for a replica of that node that has not ended. The
// package is pure.
//
// It knows nothing of streams, sessions, logins or the Raft log.
package assignment

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Full returns all assignments of a node.
func Full(snap *state.Snapshot, node string) *v1.Assignments {
	message := &v1.Assignments{Epoch: snap.Cluster().GetStatus().GetEpoch(), Full: true, Node: snap.Node(node).GetSpec()}
	for r := range snap.ReplicasOn(node) {
		if Holds(r, node) {
			message.Assign = append(message.Assign, assign(snap, r))
		}
	}
	return message
}

// News returns the assignments that changed for the given replicas, or nil if there
// are none.
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
	revision, w := snap.Revision(r.GetSpec().GetRevisionUid()), snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec()
	if w == nil { // its replicas may outlive it for a moment, and must not be free then
		w = revision.GetSpec().GetWorkload()
	}
	return &v1.Assignment{
		Replica: r, Revision: revision,
		Metric: w.GetAutoscale().GetMetric(), Egress: w.GetEgress(), Bandwidth: bandwidth(w),
	}
}

// bandwidth is the limit of a workload's replicas in bits per second, 0 for none.
func bandwidth(w *v1.WorkloadSpec) int64 {
	limit, _ := spec.ParseBandwidth(w.GetResources().GetLimits().GetBandwidth()) // valid, or refused before it was stored
	return limit
}

// WorkloadChanged reports whether the nodes with replicas of a workload must read another metric, or hold the replicas
// to other limits of the network from now on. Replicas that come later bring these with them.
func WorkloadChanged(before, after *v1.Workload) bool {
	was, is := before.GetSpec(), after.GetSpec()
	return before != nil && after != nil && (!proto.Equal(was.GetAutoscale().GetMetric(), is.GetAutoscale().GetMetric()) ||
		!proto.Equal(was.GetEgress(), is.GetEgress()) || bandwidth(was) != bandwidth(is))
}

// Holds reports whether a replica is assigned to a node and has not ended. The replica
// may be nil.
func Holds(r *v1.Replica, node string) bool {
	return r != nil && r.GetSpec().GetNodeUid() == node && spec.Live(r.GetStatus().GetPhase())
}

// Concerned returns the changed replica and the nodes that need to know. A new status
// alone concerns no node, because it came from the agent itself.
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
	return before == after || proto.Equal(before, after) // a report keeps the pointer
}

// Reported returns a replica with the status that a node reported, or nil if the report
// changes nothing or does not count: the replica is not the node's, or has ended. The
// end time and the reason for a stop come from the leader.
func Reported(old *v1.Replica, node string, status *v1.ReplicaStatus, now time.Time) *v1.Replica {
	if !Holds(old, node) || status.GetPhase() == "" {
		return nil
	}
	if why := old.GetSpec().GetStopReason(); why != "" && status.GetReason() == "" {
		status = proto.CloneOf(status) // the node does not know the reason
		status.Reason = why
	}
	if status.GetEndTime() != nil && spec.Live(status.GetPhase()) {
		status = proto.CloneOf(status) // the replica has been restarted
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

// Within returns a reported status without addresses outside of the node's subnets. Such an address belongs to another
// machine, which would get the connections of the replica's services.
func Within(node *v1.NodeSpec, status *v1.ReplicaStatus) *v1.ReplicaStatus {
	outside := func(text string) bool {
		address, err := netip.ParseAddr(text)
		return err != nil || !contains(node.GetSubnetV4(), address) && !contains(node.GetSubnetV6(), address)
	}
	if !slices.ContainsFunc(status.GetAddresses(), outside) {
		return status
	}
	status = proto.CloneOf(status)
	status.Addresses = slices.DeleteFunc(status.GetAddresses(), outside)
	return status
}

func contains(subnet string, address netip.Addr) bool {
	p, err := netip.ParsePrefix(subnet)
	return err == nil && p.Contains(address)
}
