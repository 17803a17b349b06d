package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Plan returns what applying the workloads of a request would do. It changes nothing.
func (c *Client) Plan(ctx context.Context, request *cloudlessv1.PlanRequest) (plan *cloudlessv1.Plan, err error) {
	err = whileBusy(ctx, func() error {
		plan, err = c.Plans().MakePlan(ctx, request)
		return err
	})
	return plan, err
}

// ApplyPlan does what the plan of a request showed, all of it or nothing. It is refused with the code Aborted if the
// same request would now lead to another plan.
func (c *Client) ApplyPlan(ctx context.Context, request *cloudlessv1.PlanRequest, plan *cloudlessv1.Plan) (answer *cloudlessv1.ApplyPlanResponse, err error) {
	err = whileBusy(ctx, func() error {
		answer, err = c.Plans().ApplyPlan(ctx, &cloudlessv1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
		return err
	})
	return answer, err
}

const (
	// reasonBusy: the server did nothing, because too many such calls ran at once.
	reasonBusy = "BUSY"
	// busyTries and busyPause limit how long a call is made again: about ten seconds.
	busyTries = 8
	busyPause = 100 * time.Millisecond
)

// whileBusy makes a call again that was refused only because others ran, after longer and longer pauses.
func whileBusy(ctx context.Context, call func() error) error {
	pause := busyPause
	for try := 1; ; try++ {
		err := call()
		if status.Code(err) != codes.ResourceExhausted || !hasReason(err, reasonBusy) || try == busyTries {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
		pause = min(2*pause, 3*time.Second)
	}
}
