package server

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// usageFrame is the shortest time between two frames of a watch. Everything that arrives
// meanwhile goes into one frame.
const usageFrame = 500 * time.Millisecond

func (s *workloads) GetUsage(ctx context.Context, request *v1.GetUsageRequest) (*v1.Usage, error) {
	snap, err := s.Consensus.Read(ctx) // only the leader receives the reports of nodes
	if err != nil {
		return nil, err
	}
	if err := checkWorkload(core.Caller(ctx), snap, request); err != nil {
		return nil, err
	}
	frame, _ := s.usage(core.Caller(ctx), snap, request)
	return frame, nil
}

// WatchUsage sends a frame now and whenever a node has reported something new.
func (s *workloads) WatchUsage(request *v1.GetUsageRequest, stream grpc.ServerStreamingServer[v1.Usage]) error {
	ctx := stream.Context()
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return err
	}
	if err := checkWorkload(core.Caller(ctx), snap, request); err != nil {
		return err
	}
	pause := time.NewTimer(usageFrame)
	defer pause.Stop()
	for {
		frame, news := s.usage(core.Caller(ctx), s.Store.Snapshot(), request)
		if err := stream.Send(frame); err != nil {
			return err
		}
		pause.Reset(usageFrame)
		if err := s.awaitNews(ctx, news); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-pause.C:
		}
	}
}

// leaderCheckInterval is how soon a watch of usage notices that this server no longer
// leads. Without nodes no report would reveal it.
const leaderCheckInterval = 5 * time.Second

func (s *workloads) awaitNews(ctx context.Context, news <-chan struct{}) error {
	check := time.NewTicker(leaderCheckInterval)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-news:
			return nil
		case <-check.C:
			if !s.Consensus.IsLeader() {
				return core.Refuse(codes.Unavailable, "this server does not lead the cluster any more; begin the watch again")
			}
		}
	}
}

// checkWorkload refuses a workload that does not exist. Otherwise it would look like one
// that uses nothing.
func checkWorkload(p core.Principal, snap *state.Snapshot, request *v1.GetUsageRequest) error {
	if request.GetWorkload() == "" {
		return nil
	}
	for w := range snap.Workloads(request.GetNamespace(), "") {
		if w.GetMetadata().GetName() == request.GetWorkload() && p.Sees("workload", w.GetMetadata().GetNamespace()) {
			return nil
		}
	}
	if request.GetNamespace() != "" {
		return notfound.Workload(snap, request.GetNamespace(), request.GetWorkload())
	}
	return core.NotFound("workload", "", request.GetWorkload())
}

// usage returns the usage that a request asks for and its caller may see, sorted by name, and a channel that is
// closed when there is news.
func (s *Server) usage(p core.Principal, snap *state.Snapshot, of *v1.GetUsageRequest) (*v1.Usage, <-chan struct{}) {
	nodes, replicas, news := s.nodes.Usage()
	frame := &v1.Usage{Time: timestamppb.New(s.Now())}
	concerned := map[string]bool{} // names of the nodes that a workload runs on
	for _, u := range replicas {
		if (of.GetNamespace() == "" || u.GetNamespace() == of.GetNamespace()) && (of.GetWorkload() == "" || u.GetWorkload() == of.GetWorkload()) &&
			p.Sees("workload", u.GetNamespace()) {
			frame.Replicas = append(frame.Replicas, u)
			concerned[u.GetNode()] = true
		}
	}
	slices.SortFunc(frame.Replicas, func(a, b *v1.ReplicaUsage) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetReplica(), b.GetReplica()))
	})
	for n := range snap.Nodes("") {
		m := n.GetMetadata()
		if of.GetWorkload() != "" && !concerned[m.GetName()] || !p.Sees("node", "") {
			continue
		}
		frame.Nodes = append(frame.Nodes, &v1.NodeUsage{
			Node: m.GetName(), State: n.GetStatus().GetState(), Usage: nodes[m.GetUid()],
			Capacity: n.GetStatus().GetCapacity(), Replicas: runningOn(snap, m.GetUid()),
		})
	}
	return frame, news
}

func runningOn(snap *state.Snapshot, node string) (count int32) {
	for r := range snap.ReplicasOn(node) {
		if r.GetStatus().GetPhase() == spec.PhaseRunning {
			count++
		}
	}
	return count
}
