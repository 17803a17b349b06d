package server

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/policies"
)

// nodeService is the NodeService.
type nodeService struct {
	v1.UnsafeNodeServiceServer
	*collection[*v1.Node]
}

func newNodes(s *Server) *collection[*v1.Node] {
	c := newCollection[*v1.Node](s, state.KindNode)
	c.labels, c.present = spec.NodeLabels, s.presentNode
	c.prepare = func(_ context.Context, given *v1.Node, _ *preparation) (builder[*v1.Node], error) {
		return &nodeBuilder{collection: c, given: given}, nil
	}
	return c
}

func (s *nodeService) GetNode(ctx context.Context, request *v1.GetNodeRequest) (*v1.Node, error) {
	return s.read(ctx, "", request.GetName())
}

func (s *nodeService) ListNodes(ctx context.Context, request *v1.ListNodesRequest) (*v1.ListNodesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Node]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	return &v1.ListNodesResponse{Items: items, Next: next}, nil
}

// DeleteNode expels a node, which then stops its replicas. A node with replicas, or the only node, is removed only by
// force. The state refuses the node's calls as soon as the transaction commits. When this call returns, every reachable
// server has also closed its connections to the node (see removal.go).
func (s *nodeService) DeleteNode(ctx context.Context, request *v1.DeleteNodeRequest) (*v1.Node, error) {
	var removed *v1.Node
	var event *v1.Event
	after, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		removed = snap.NodeByName(request.GetName())
		if removed == nil {
			return s.missing(snap, "", request.GetName())
		}
		m := removed.GetMetadata()
		if err := s.sameVersion(removed, request.GetVersion()); err != nil {
			return err
		}
		if !request.GetForce() {
			if err := checkNodeRemovable(snap, removed); err != nil {
				return err
			}
		}
		lost := placement.LoseReplicas(s.Now(), snap, b, removed)
		b.DeleteVersion(state.KindNode, m.GetUid(), m.GetVersion())
		if err := s.membership.RecordRemoval(b, identity.KindNode, m.GetUid()); err != nil {
			return err
		}
		event = s.Event(ctx, removed, "Removed", fmt.Sprintf("%d replicas on it count as lost", lost))
		b.Create(event)
		return policies.Judge(ctx, s.Core, snap, b).Refusal()
	})
	if err != nil {
		return nil, err
	}
	s.membership.WaitActedOn(ctx, after, event)
	return removed, nil
}

// checkNodeRemovable refuses to remove a node that has replicas or is the only one.
func checkNodeRemovable(snap *state.Snapshot, n *v1.Node) error {
	name, live := n.GetMetadata().GetName(), placement.LiveOn(snap, n)
	switch {
	case snap.Count(state.KindNode) == 1:
		return core.Refuse(codes.FailedPrecondition, "node %s is the last node of the cluster, and nothing would run without it (%s on it now): "+
			"add another node first with: cloudless token create --role node, or remove it all the same with --force", name, spec.Count(live, "replica"))
	case live > 0:
		return core.Refuse(codes.FailedPrecondition, "node %s has %s: move what it has to other nodes first with: cloudless node drain %s, "+
			"or remove it all the same with --force, and they count as lost", name, spec.Count(live, "replica"), name)
	}
	return nil
}

func (s *nodeService) WatchNodes(request *v1.WatchNodesRequest, stream grpc.ServerStreamingServer[v1.NodeChange]) error {
	matches, err := s.matcher(stream.Context(), selection[*v1.Node]{labels: request.GetLabels()})
	if err != nil {
		return err
	}
	out := newTracker(func(change string, n *v1.Node) error {
		return stream.Send(&v1.NodeChange{Change: change, Node: n})
	})
	return s.Server.watch(stream.Context(), func(snap *state.Snapshot) error {
		for n := range snap.Nodes("") {
			if matches(n) {
				if err := out.present(n.GetMetadata().GetUid(), n); err != nil {
					return err
				}
			}
		}
		return stream.Send(&v1.NodeChange{Change: changeSynced})
	}, func(_ *state.Snapshot, changes []state.Change) error {
		return eachChanged(changes, out, matches)
	})
}

// offlineNodes caches the uids of the nodes that are not offline. Every replica that is shown
// or counted needs them, and nodes seldom change.
type offlineNodes struct {
	nodes state.Generation
	// others are the uids of the nodes that exist and are not offline.
	others map[string]bool
}

// offlineIn says which nodes of a snapshot are offline.
func (s *Server) offlineIn(snap *state.Snapshot) *offlineNodes {
	nodes := snap.Generation(state.KindNode)
	if cached := s.offline.Load(); cached != nil && cached.nodes == nodes {
		return cached
	}
	found := &offlineNodes{nodes: nodes, others: map[string]bool{}}
	for n := range snap.Nodes("") {
		if n.GetStatus().GetState() != spec.NodeOffline {
			found.others[n.GetMetadata().GetUid()] = true
		}
	}
	s.offline.Store(found)
	return found
}

// host reports whether a live replica is on a node that is offline or was removed. It may
// still run there, but that is unknown.
func (o *offlineNodes) host(r *v1.Replica) bool {
	node := r.GetSpec().GetNodeUid()
	return node != "" && !o.others[node] && spec.Live(r.GetStatus().GetPhase())
}

// presentReplica returns a replica as the API shows it: the stored one, with what only this
// server's memory holds, and with a reason if it has no node or its node is offline or
// removed.
func (s *Server) presentReplica(snap *state.Snapshot, stored *v1.Replica) *v1.Replica {
	if isWaiting(stored) {
		if placement.HeldBack(time.Now(), stored) {
			return stored // its reason holds until then
		}
		return presentWaiting(stored, placement.AwaitsSecret(snap, snap.Revision(stored.GetSpec().GetRevisionUid()), s.Now()))
	}
	if !s.offlineIn(snap).host(stored) {
		return s.sessions.WithProgress(stored)
	}
	r := proto.CloneOf(stored)
	what := "is offline"
	if placement.NodeRemoved(snap, stored) {
		what = "was removed"
	}
	r.Status.Reason = fmt.Sprintf("node %s %s; it was %s there", r.GetSpec().GetNode(), what, stored.GetStatus().GetPhase())
	w := snap.Workload(r.GetSpec().GetWorkloadUid())
	if why := placement.Stuck(snap, w, r); why != "" {
		r.Status.Reason += "; " + why
	} else if at := placement.LostAt(snap, w, r); time.Now().Before(at) {
		r.Status.Reason += fmt.Sprintf("; it is replaced if the node is not back by %s", at.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	if limit := limitOf(snap, r.GetSpec().GetWorkloadUid()); limit != "" {
		r.Status.Reason += "; " + limit
	}
	r.Status.Phase, r.Status.Pid = spec.PhaseUnknown, 0
	return r
}

// limitOf says that not all lost replicas of a workload are replaced at once, if the
// configuration says so.
func limitOf(snap *state.Snapshot, workload string) string {
	limit := spec.FailoverOf(snap.Cluster().GetSpec())
	if limit.Replicas == 0 || snap.Workload(workload).GetSpec().GetKind() == spec.KindDaemon {
		return ""
	}
	return limit.String()
}

// isWaiting reports whether a replica has no node and a reason for that is stored.
func isWaiting(r *v1.Replica) bool {
	return r.GetStatus().GetPhase() == spec.PhasePending && r.GetStatus().GetReason() != "" &&
		r.GetSpec().GetNodeUid()+r.GetSpec().GetReservedNodeUid()+r.GetSpec().GetSucceeds() == ""
}

// presentWaiting replaces the stored reason, which is from the moment when the replica began
// to wait, by the secret that it waits for or the command that shows the present reason.
func presentWaiting(stored *v1.Replica, secret string) *v1.Replica {
	status := proto.CloneOf(stored.GetStatus())
	status.Reason = cmp.Or(secret, "cannot be placed "+explainHint(stored.GetMetadata().GetNamespace(), stored.GetSpec().GetWorkload()))
	return &v1.Replica{
		ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(),
		Metadata: stored.GetMetadata(), Spec: stored.GetSpec(), Status: status,
	}
}

// explainHint is the command that says why replicas of a workload have no node.
func explainHint(namespace, workload string) string {
	return fmt.Sprintf("(details: %s)", spec.Hint(namespace, "cloudless explain "+workload))
}

// presentReplicas does the same with the replicas in changes, and adds the replicas of
// nodes that have gone offline or come back.
func (s *Server) presentReplicas(snap *state.Snapshot, changes []state.Change) []state.Change {
	var shown []state.Change
	for _, c := range changes {
		switch now := c.New.(type) {
		case *v1.Replica:
			c.New = s.presentReplica(snap, now)
			shown = append(shown, c)
		case *v1.Node:
			for r := range affectedReplicas(snap, c) {
				shown = append(shown, state.Change{Kind: state.KindReplica, Old: r, New: s.presentReplica(snap, r)})
			}
		default:
			shown = append(shown, c)
		}
	}
	return shown
}

// affectedReplicas yields the live replicas of a node that goes offline, comes back or is
// removed with a change.
func affectedReplicas(snap *state.Snapshot, c state.Change) func(yield func(*v1.Replica) bool) {
	return func(yield func(*v1.Replica) bool) {
		before, _ := c.Old.(*v1.Node)
		after, _ := c.New.(*v1.Node)
		if after != nil && (before.GetStatus().GetState() == spec.NodeOffline) == (after.GetStatus().GetState() == spec.NodeOffline) {
			return
		}
		for r := range snap.ReplicasOn(cmp.Or(after.GetMetadata().GetUid(), before.GetMetadata().GetUid())) {
			if spec.Live(r.GetStatus().GetPhase()) && !yield(r) {
				return
			}
		}
	}
}
