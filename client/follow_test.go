package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/identity"
)

// watched is a cluster whose watches are functions.
type watched struct {
	cloudlessv1.UnimplementedWorkloadServiceServer
	workloads func(grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error
	replicas  func(grpc.ServerStreamingServer[cloudlessv1.ReplicaChange]) error
}

func (w *watched) WatchWorkloads(_ *cloudlessv1.WatchWorkloadsRequest, s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
	return w.workloads(s)
}

func (w *watched) WatchReplicas(_ *cloudlessv1.WatchReplicasRequest, s grpc.ServerStreamingServer[cloudlessv1.ReplicaChange]) error {
	return w.replicas(s)
}

// A follower sees both kinds, starts over after the server was away, and ends when it has
// enough.
func TestFollowSurvivesTheServer(t *testing.T) {
	opened := 0
	srv := &watched{
		workloads: func(s grpc.ServerStreamingServer[cloudlessv1.WorkloadChange]) error {
			_ = s.Send(&cloudlessv1.WorkloadChange{Change: "synced"})
			<-s.Context().Done()
			return nil
		},
		replicas: func(s grpc.ServerStreamingServer[cloudlessv1.ReplicaChange]) error {
			opened++ // one stream at a time
			named := &cloudlessv1.Replica{Metadata: &cloudlessv1.Metadata{Name: fmt.Sprint("web-", opened)}}
			_ = s.Send(&cloudlessv1.ReplicaChange{Change: "added", Replica: named})
			_ = s.Send(&cloudlessv1.ReplicaChange{Change: "synced"})
			if opened == 1 {
				return status.Error(codes.Unavailable, "the server stops")
			}
			_ = s.Send(&cloudlessv1.ReplicaChange{Change: "removed", Replica: named})
			<-s.Context().Done()
			return nil
		},
	}
	a := newAuthority(t, "test")
	address := a.serve(identity.KindServer, func(r grpc.ServiceRegistrar) { cloudlessv1.RegisterWorkloadServiceServer(r, srv) })
	enough := errors.New("enough")
	var replicas []string
	resets, synced := 0, 0
	err := dial(t, a.context(address)).Follow(t.Context(), "default", "web", func(u client.Update) error {
		switch {
		case u.Reset:
			resets++
		case u.Synced:
			synced++
		case u.Removed:
			replicas = append(replicas, "-"+u.Replica.GetMetadata().GetName())
		default:
			replicas = append(replicas, u.Replica.GetMetadata().GetName())
		}
		if synced > 0 && len(replicas) > 0 && replicas[len(replicas)-1] == "-web-2" { // the order of the two watches is random
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || resets != 2 || synced == 0 || !slices.Contains(replicas, "web-1") || replicas[len(replicas)-1] != "-web-2" {
		t.Errorf("ended with %v after %d beginnings, %d times whole, having seen %v", err, resets, synced, replicas)
	}
}

type planner struct {
	cloudlessv1.UnimplementedPlanServiceServer
	applied *cloudlessv1.ApplyPlanRequest
}

func (p *planner) MakePlan(_ context.Context, r *cloudlessv1.PlanRequest) (*cloudlessv1.Plan, error) {
	return &cloudlessv1.Plan{Fingerprint: "of " + r.GetPrune()}, nil
}

func (p *planner) ApplyPlan(_ context.Context, r *cloudlessv1.ApplyPlanRequest) (*cloudlessv1.ApplyPlanResponse, error) {
	p.applied = r
	return &cloudlessv1.ApplyPlanResponse{}, nil
}

func TestApplyPlanNamesThePlanThatWasShown(t *testing.T) {
	a, srv := newAuthority(t, "test"), &planner{}
	c := dial(t, a.context(a.serve(identity.KindServer, func(r grpc.ServiceRegistrar) { cloudlessv1.RegisterPlanServiceServer(r, srv) })))
	request := &cloudlessv1.PlanRequest{Prune: "app=shop"}
	plan, err := c.Plan(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ApplyPlan(t.Context(), request, plan); err != nil {
		t.Fatal(err)
	}
	if srv.applied.GetFingerprint() != "of app=shop" || srv.applied.GetRequest().GetPrune() != "app=shop" || srv.applied.GetIdempotencyKey() == "" {
		t.Errorf("the cluster was asked for %v", srv.applied)
	}
}
