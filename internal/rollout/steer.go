package rollout

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// What an operator asks of an open deployment. Each function changes it in place and reports whether there was
// anything to change.

// Pause stops a deployment where it is.
func Pause(d *v1.Deployment) bool {
	if d.GetSpec().GetPaused() {
		return false
	}
	d.Spec.Paused, d.Status.Phase = true, spec.DeploymentPaused
	return true
}

// Resume continues a paused deployment. The time in which it was paused does not count as time without progress.
func Resume(d *v1.Deployment, now time.Time) bool {
	if !d.GetSpec().GetPaused() {
		return false
	}
	d.Spec.Paused, d.Status.Phase, d.Status.ProgressTime = false, spec.DeploymentRunning, timestamppb.New(now)
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

// Abort lets a deployment roll back. It needs an earlier revision to go back to.
func Abort(d *v1.Deployment) bool {
	if d.GetSpec().GetAborted() {
		return false
	}
	d.Spec.Aborted, d.Spec.Paused = true, false
	return true
}
