package server

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/state"
)

// explainService is the ExplainService. It computes explanations from a snapshot, so that
// any server can give a stale one, and the loop that places replicas is not delayed.
type explainService struct {
	v1.UnsafeExplainServiceServer
	*Server
	nodes *collection[*v1.Node]
	// turn lets one explanation run at a time, because each reads all replicas of the
	// cluster.
	turn chan struct{}
}

func newExplainService(nodes *collection[*v1.Node]) *explainService {
	return &explainService{Server: nodes.Server, nodes: nodes, turn: make(chan struct{}, 1)}
}

func (s *explainService) GetExplanation(ctx context.Context, request *v1.GetExplanationRequest) (*v1.Explanation, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	w := snap.WorkloadByName(namespace, request.GetName())
	if w == nil {
		return nil, notfound.Workload(snap, namespace, request.GetName())
	}
	answer, err := s.explain(ctx, snap, w, request.GetNode(), request.GetAll())
	if err != nil {
		return nil, err
	}
	answer.Phase = s.presentWorkload(snap, w, false).GetStatus().GetPhase()
	return answer, nil
}

// ExplainWorkload applies the workload to a fork of the state and explains the result.
func (s *explainService) ExplainWorkload(ctx context.Context, request *v1.ExplainWorkloadRequest) (*v1.Explanation, error) {
	wanted, err := s.prepareAll(ctx, &v1.PlanRequest{Objects: []*v1.Manifest{{Object: &v1.Manifest_Workload{Workload: request.GetWorkload()}}}})
	if err != nil {
		return nil, err
	}
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	fork, p := snap.Fork(), newPlanned(core.Caller(ctx), snap)
	if err := wanted.objects[0].plan(ctx, p); err != nil {
		return nil, err
	}
	if p.batch.Len() > 0 {
		if _, err := fork.Apply(proto.CloneOf(p.batch.Transaction(s.Now()))); err != nil {
			return nil, fmt.Errorf("apply the workload to a fork of the state: %w", err)
		}
	}
	w := fork.Snapshot().Workload(p.objects[0].uid)
	answer, err := s.explain(ctx, fork.Snapshot(), w, request.GetNode(), request.GetAll())
	if err != nil {
		return nil, err
	}
	if old := p.base.Workload(p.objects[0].uid); old != nil {
		answer.Phase = s.presentWorkload(p.base, old, false).GetStatus().GetPhase()
	}
	return answer, nil
}

// explain computes one explanation at a time.
func (s *explainService) explain(ctx context.Context, snap *state.Snapshot, w *v1.Workload, node string, all bool) (*v1.Explanation, error) {
	uid := ""
	if node != "" {
		n := snap.NodeByName(node)
		if n == nil {
			return nil, s.nodes.missing(snap, "", node)
		}
		uid = n.GetMetadata().GetUid()
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	return s.placement.Explanation(snap, w.GetMetadata().GetUid(), uid, all)
}
