package server

import (
	"context"
	"iter"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

func (s *workloads) GetWorkload(ctx context.Context, request *v1.GetWorkloadRequest) (*v1.Workload, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	w := snap.WorkloadByName(namespace, request.GetName())
	if w == nil {
		return nil, missingWorkload(snap, namespace, request.GetName())
	}
	return s.presentWorkload(snap, w, true), nil
}

func (s *workloads) ListWorkloads(ctx context.Context, request *v1.ListWorkloadsRequest) (*v1.ListWorkloadsResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Workload]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListWorkloadsResponse{Items: items, Next: next}, nil
}

func (s *workloads) ListReplicas(ctx context.Context, request *v1.ListReplicasRequest) (*v1.ListReplicasResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	selection := request.GetSelection()
	selector, err := spec.ParseSelector(selection.GetLabels())
	if err != nil {
		return nil, err
	}
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Replica] {
		return snap.Replicas(selection.GetNamespace(), after)
	}, byPath, func(r *v1.Replica) bool {
		return (request.GetEnded() || !spec.Ended(r.GetStatus().GetPhase())) &&
			(request.GetWorkload() == "" || r.GetSpec().GetWorkload() == request.GetWorkload()) &&
			(request.GetNode() == "" || r.GetSpec().GetNode() == request.GetNode()) &&
			selector.Matches(r.GetMetadata().GetLabels())
	})
	if err != nil {
		return nil, err
	}
	for i, r := range items {
		items[i] = s.presentReplica(snap, r)
	}
	return &v1.ListReplicasResponse{Items: items, Next: next}, nil
}
