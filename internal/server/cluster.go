package server

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
)

// clusterService is the ClusterService.
type clusterService struct {
	v1.UnsafeClusterServiceServer
	*Server
}

func (s *clusterService) GetCluster(ctx context.Context, request *v1.GetClusterRequest) (*v1.Cluster, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	cluster := proto.CloneOf(snap.Cluster())
	if cluster == nil {
		return nil, core.Refuse(codes.Unavailable, "this server has not received the cluster's state yet; ask another one, or again in a moment")
	}
	if name := cluster.GetMetadata().GetName(); request.GetName() != "" && request.GetName() != name {
		return nil, core.Refuse(codes.NotFound, "this is cluster %s, not %s; choose another one with: cloudless context use NAME", name, request.GetName())
	}
	servers := s.presentServers(snap)
	s.markUnreachable(ctx, servers)
	for _, one := range servers {
		cluster.Status.Servers = append(cluster.Status.Servers, one.GetStatus())
	}
	voters := spec.VotersOf(cluster.GetSpec())
	tolerated, problems := serverProblems(cluster.GetStatus().GetServers(), expectedVoters(cluster))
	cluster.Status.ToleratedFailures, cluster.Status.DesiredVoters = int32(tolerated), int32(voters)
	if _, known := s.Consensus.Leader(); !known && len(cluster.GetStatus().GetServers()) > 1 {
		furthest := s.mostAdvanced(ctx, cluster.GetStatus().GetServers())
		problems = append(problems, fmt.Sprintf("server %s has the longest log of the servers that answer: it ends with entry %d of term %d",
			furthest.GetName(), furthest.GetLastIndex(), furthest.GetLastTerm()))
	}
	cluster.Status.Problems = slices.Concat(problems, leaderProblems(snap, s.Now()), s.nodeProblems(snap), s.duplicates.Problems(s.Now()))
	return cluster, nil
}

// expectedVoters is the number of voting servers below which the status reports missing
// ones. It is 1 for a cluster that always had one server and does not set desiredVoters, so
// that a single server does not complain about the default of three.
func expectedVoters(cluster *v1.Cluster) int {
	st := cluster.GetStatus()
	const first = 1 // epoch number; each recovery raises it
	if len(st.GetServers()) == 1 && st.GetEpoch() <= first && cluster.GetSpec().DesiredVoters == nil {
		return 1
	}
	return spec.VotersOf(cluster.GetSpec())
}

func (s *clusterService) WhoAmI(ctx context.Context, _ *v1.WhoAmIRequest) (*v1.WhoAmIResponse, error) {
	p := core.Caller(ctx)
	return &v1.WhoAmIResponse{Id: p.ID.String(), Role: p.Role}, nil
}
