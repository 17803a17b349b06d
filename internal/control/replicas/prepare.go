package replicas

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A deployment may have to wait before it creates the first replica of its revision: for the
// workloads that it depends on, and then for its release command. Until then the last good
// revision runs, and lost replicas of it are replaced. Once it has begun, it never waits again.

// prepare does what must be done before the first replica of the new revision is created.
// failure says why that can never be.
func (t *tick) prepare(w *v1.Workload, d *v1.Deployment) (failure string) {
	if d.GetStatus().GetWaiting() && !t.cluster.foreseeing {
		waiting, failure := t.await(w, d)
		if failure != "" {
			return failure
		}
		if waiting == "" && d.GetSpec().GetPaused() {
			waiting = "is paused before its first replica"
		}
		if waiting != "" {
			if d.GetStatus().GetReason() != waiting && d.GetStatus().GetRelease() == nil {
				t.event(w, "Waiting", fmt.Sprintf("deployment %d %s", d.GetSpec().GetNumber(), waiting), state.SeverityInfo)
			}
			d.Status.Reason = waiting
			return ""
		}
		t.begin(w, d)
	}
	if d.GetStatus().GetPhase() == spec.DeploymentPending {
		t.begin(w, d)
	}
	return ""
}

// begin lets a deployment create replicas.
func (t *tick) begin(w *v1.Workload, d *v1.Deployment) {
	if s := d.GetSpec(); s.GetPreviousUid() != "" {
		t.event(w, "RolloutStarted", fmt.Sprintf("deployment %d: revision %d replaces revision %d by strategy %s",
			s.GetNumber(), s.GetRevision(), s.GetPrevious(), spec.DeploymentStrategy(d, w.GetSpec())), state.SeverityInfo)
	}
	if d.GetStatus().GetWaiting() {
		d.Status.Waiting, d.Status.Reason = false, ""
	}
	if d.GetStatus().GetPhase() == spec.DeploymentPending {
		d.Status.Phase = spec.DeploymentRunning
	}
}

// await says what a deployment waits for, or why it waits in vain.
func (t *tick) await(w *v1.Workload, d *v1.Deployment) (waiting, failure string) {
	if d.GetStatus().GetRelease() == nil {
		if waiting, failure = placement.Unmet(t.snap, w); waiting != "" || failure != "" {
			if !d.GetSpec().GetPaused() {
				d.Status.Phase = spec.DeploymentPending
			}
			t.depends(w)
			return waiting, failure
		}
	}
	return t.release(w, d)
}

// depends makes a workload due when one changes that it depends on.
func (t *tick) depends(w *v1.Workload) {
	for name := range w.GetSpec().GetDependsOn() {
		path := w.GetMetadata().GetNamespace() + "/" + name
		if t.left.Depending[path] == nil {
			t.left.Depending[path] = map[string]bool{}
		}
		t.left.Depending[path][w.GetMetadata().GetUid()] = true
	}
}

// holdJob keeps a job from starting before the workloads that it depends on are as it needs
// them. A job that has begun goes on.
func (t *tick) holdJob(w *v1.Workload, replicas []rollout.Replica, step *rollout.JobStep) {
	for _, r := range replicas {
		if r.Revision == w.GetStatus().GetRevisionUid() {
			return
		}
	}
	waiting, failure := placement.Unmet(t.snap, w)
	switch {
	case t.cluster.foreseeing || step.Outcome != "" || w.GetMetadata().GetDeleteTime() != nil:
	case failure != "":
		step.Outcome, step.Reason, step.Create = spec.PhaseFailed, failure, 0
	case waiting != "":
		t.depends(w)
		step.Create, step.Succeed = 0, nil
	}
}

// target is a workload as its replicas should be now: with the strategy of its newest deployment,
// and with the last good revision while the deployment waits. It is nil if there is none.
func (t *tick) target(w *v1.Workload) *v1.Workload {
	d := t.deployments[w.GetMetadata().GetUid()]
	if d == nil {
		d = t.snap.Deployment(w.GetStatus().GetDeploymentUid())
	}
	switch {
	case w.GetMetadata().GetDeleteTime() != nil:
		return w
	case !spec.Waits(w, d):
		return asBegun(w, d)
	}
	previous := t.snap.Revision(d.GetSpec().GetPreviousUid())
	if previous == nil {
		return nil
	}
	before := proto.CloneOf(w)
	spec.ReturnTo(before, previous)
	return before
}

// asBegun is a workload with the strategy that its newest deployment began with.
func asBegun(w *v1.Workload, d *v1.Deployment) *v1.Workload {
	strategy := spec.DeploymentStrategy(d, w.GetSpec())
	if strategy == spec.StrategyOf(w.GetSpec()) {
		return w
	}
	begun := proto.CloneOf(w)
	if begun.Spec.Update == nil {
		begun.Spec.Update = &v1.Update{}
	}
	begun.Spec.Update.Strategy = strategy
	return begun
}
