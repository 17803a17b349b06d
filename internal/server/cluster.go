package server

import (
	"context"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// clusterService is the ClusterService.
type clusterService struct {
	v1.UnimplementedClusterServiceServer
	*Server
}

func (s *clusterService) GetCluster(ctx context.Context, _ *v1.GetClusterRequest) (*v1.Cluster, error) {
	snap, err := s.consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	cluster := proto.CloneOf(snap.Cluster())
	leader, _ := s.consensus.Leader()
	cluster.Status.Servers = []*v1.ServerStatus{{
		Uid:     s.uid,
		Address: s.address,
		Leader:  leader.ID == s.uid,
		Voter:   true,
		Version: s.version,
	}}
	return cluster, nil
}

func (s *clusterService) WhoAmI(ctx context.Context, _ *v1.WhoAmIRequest) (*v1.WhoAmIResponse, error) {
	p := caller(ctx)
	return &v1.WhoAmIResponse{Id: p.ID.String(), Role: p.Role}, nil
}
