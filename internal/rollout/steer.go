package rollout

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// What an operator asks of an open deployment. Each function changes it in place and reports whether there was
// anything to change.

// Pause stops a deployment where it is. A canary keeps its share of the traffic.
func Pause(d *v1.Deployment, now time.Time) bool {
	if d.GetSpec().GetPaused() {
		return false
	}
	d.Spec.Paused, d.Status.Phase = true, spec.DeploymentPaused
	if spec.CanaryOf(d) != nil {
		d.Status.PauseTime = timestamppb.New(now)
	}
	return true
}

// Resume continues a paused deployment. The time in which it was paused does not count as time without progress, nor for
// the step of a canary.
func Resume(d *v1.Deployment, now time.Time) bool {
	if !d.GetSpec().GetPaused() {
		return false
	}
	d.Spec.Paused, d.Status.Phase, d.Status.ProgressTime = false, spec.DeploymentRunning, timestamppb.New(now)
	if from := d.GetStatus().GetPauseTime(); from != nil {
		if since := d.GetStatus().GetStepTime(); since != nil {
			paused := max(0, now.Sub(from.AsTime())) // by clocks of two servers
			d.Status.StepTime = timestamppb.New(since.AsTime().Add(paused))
		}
		d.Status.PauseTime = nil
	}
	return true
}

// Promote lets a blue-green deployment switch.
func Promote(d *v1.Deployment) bool {
	if d.GetSpec().GetPromoted() || d.GetStatus().GetSwitched() {
		return false
	}
	d.Spec.Promoted = true
	return true
}

// PromoteCanary skips the rest of the present step of a canary deployment, or of all its steps.
func PromoteCanary(d *v1.Deployment, full bool) bool {
	steps := len(spec.StepsOf(spec.CanaryOf(d)))
	step := int(d.GetStatus().GetStep())
	if step > steps {
		return false // all have held
	}
	if step = max(1, step); full {
		step = steps + 1
	}
	if step <= int(d.GetSpec().GetPromotedStep()) {
		return false
	}
	d.Spec.PromotedStep = int32(step)
	return true
}

// Abort lets a deployment roll back. It needs an earlier revision to go back to.
func Abort(d *v1.Deployment) bool {
	if d.GetSpec().GetAborted() {
		return false
	}
	d.Spec.Aborted, d.Spec.Paused = true, false
	return true
}
