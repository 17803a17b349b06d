package server

import (
	"context"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// policyService is the PolicyService. What policies say of objects is in server/policies, and of nodes in
// control/placement.
type policyService struct {
	v1.UnsafePolicyServiceServer
	*collection[*v1.Policy]
}

func newPolicies(s *Server) *collection[*v1.Policy] {
	c := newCollection[*v1.Policy](s, state.KindPolicy)
	c.normalize = spec.NormalizePolicy
	c.summary = func(p *v1.Policy) string {
		return "mode " + p.GetSpec().GetMode() + ", " + spec.Count(len(p.GetSpec().GetRules()), "rule")
	}
	c.prepare = func(ctx context.Context, given *v1.Policy, p *preparation) (builder[*v1.Policy], error) {
		if err := policy.Check(given); err != nil {
			return nil, err
		}
		return c.preparePlain(ctx, given, p)
	}
	return c
}

func (s *policyService) CreatePolicy(ctx context.Context, request *v1.CreatePolicyRequest) (*v1.Policy, error) {
	return s.create(ctx, request, request.GetPolicy())
}

func (s *policyService) ApplyPolicy(ctx context.Context, request *v1.ApplyPolicyRequest) (*v1.ApplyPolicyResponse, error) {
	p, result, err := s.apply(ctx, request, request.GetPolicy())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyPolicyResponse{Policy: p, Result: result}, nil
}

func (s *policyService) UpdatePolicy(ctx context.Context, request *v1.UpdatePolicyRequest) (*v1.Policy, error) {
	return s.update(ctx, request.GetPolicy())
}

func (s *policyService) DeletePolicy(ctx context.Context, request *v1.DeletePolicyRequest) (*v1.Policy, error) {
	return s.delete(ctx, "", request.GetName(), request.GetVersion())
}

func (s *policyService) GetPolicy(ctx context.Context, request *v1.GetPolicyRequest) (*v1.Policy, error) {
	return s.read(ctx, "", request.GetName())
}

func (s *policyService) ListPolicies(ctx context.Context, request *v1.ListPoliciesRequest) (*v1.ListPoliciesResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Policy]{labels: request.GetLabels()})
	if err != nil {
		return nil, err
	}
	return &v1.ListPoliciesResponse{Items: items, Next: next}, nil
}
