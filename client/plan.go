package client

import (
	"context"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Plan returns what applying the workloads of a request would do. It changes nothing.
func (c *Client) Plan(ctx context.Context, request *cloudlessv1.PlanRequest) (*cloudlessv1.Plan, error) {
	return c.Plans().MakePlan(ctx, request)
}

// ApplyPlan does what the plan of a request showed, all of it or nothing. It is refused with the code Aborted if the
// same request would now lead to another plan.
func (c *Client) ApplyPlan(ctx context.Context, request *cloudlessv1.PlanRequest, plan *cloudlessv1.Plan) (*cloudlessv1.ApplyPlanResponse, error) {
	return c.Plans().ApplyPlan(ctx, &cloudlessv1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
}
