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

func (s *clusterService) GetCluster(ctx context.Context, _ *v1.GetClusterRequest) (*v1.Cluster, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	cluster := proto.CloneOf(snap.Cluster())
	if cluster == nil {
		return nil, core.Refuse(codes.Unavailable, "this server has not received the cluster's state yet; ask another one, or again in a moment")
	}
	servers := s.presentServers(snap)
	s.lookFor(ctx, servers)
	for _, one := range servers {
		cluster.Status.Servers = append(cluster.Status.Servers, one.GetStatus())
	}
	voters := spec.VotersOf(cluster.GetSpec())
	tolerated, problems := troubles(cluster.GetStatus().GetServers(), missedFrom(cluster))
	cluster.Status.ToleratedFailures, cluster.Status.DesiredVoters = int32(tolerated), int32(voters)
	if _, known := s.Consensus.Leader(); !known && len(cluster.GetStatus().GetServers()) > 1 {
		furthest := s.howFar(ctx, cluster.GetStatus().GetServers())
		problems = append(problems, fmt.Sprintf("of the servers that answer %s is furthest: its log ends with entry %d of term %d",
			furthest.GetName(), furthest.GetLastIndex(), furthest.GetLastTerm()))
	}
	cluster.Status.Problems = slices.Concat(problems, leaderTroubles(snap, s.Now()), s.nodeTroubles(snap), s.duplicates.Problems(s.Now()))
	return cluster, nil
}

// missedFrom is how many servers should vote before some are said to be missing. One
// that was always alone is not told so only because three vote where nobody says how
// many; one that others were lost from, or that somebody wants more beside, is.
func missedFrom(cluster *v1.Cluster) int {
	st := cluster.GetStatus()
	const first = 1 // epoch; each recovery begins another one
	if len(st.GetServers()) == 1 && st.GetEpoch() <= first && cluster.GetSpec().DesiredVoters == nil {
		return 1
	}
	return spec.VotersOf(cluster.GetSpec())
}

func (s *clusterService) WhoAmI(ctx context.Context, _ *v1.WhoAmIRequest) (*v1.WhoAmIResponse, error) {
	p := core.Caller(ctx)
	return &v1.WhoAmIResponse{Id: p.ID.String(), Role: p.Role}, nil
}
