package replicas

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A deployment ends with the verdict of package rollout: it succeeds when every replica of the
// new revision has proven itself, and fails when one of them ends again and again, or when
// there is no progress for too long. A failed deployment rolls back: the workload returns to
// the revision of the last deployment that succeeded, whose replicas are current again.

// openDeployment is the workload's deployment that has not ended yet, or nil.
func openDeployment(snap *state.Snapshot, w *v1.Workload) *v1.Deployment {
	if d := snap.Deployment(w.GetStatus().GetDeploymentUid()); spec.DeploymentOpen(d) {
		return d
	}
	return nil
}

// rollingOut reports whether the newest deployment of a workload has not ended, or keeps its
// revision from running.
func rollingOut(snap *state.Snapshot, w *v1.Workload) bool {
	d := snap.Deployment(w.GetStatus().GetDeploymentUid())
	return spec.DeploymentOpen(d) || spec.Waits(w, d)
}

// deploy takes the deployment of a workload one step further, and reports whether it was rolled
// back.
func (t *tick) deploy(w *v1.Workload, want int, replicas []rollout.Replica) (rolledBack bool) {
	old := openDeployment(t.snap, w)
	switch {
	case w.GetMetadata().GetDeleteTime() != nil:
		t.removeReleases(w)
		return false
	case old == nil:
		return false
	}
	d := proto.CloneOf(old)
	p := rollout.ProgressOf(w.GetStatus().GetRevisionUid(), w.GetSpec(), want, replicas)
	t.endEarlierReleases(w)
	if d.GetSpec().GetAborted() {
		rolledBack = t.fail(w, d, "it was aborted")
	} else if failure := t.groupFailure(d); failure != "" && (d.GetSpec().GetPreviousUid() != "" || d.GetStatus().GetWaiting()) {
		d.Spec.Aborted = true
		rolledBack = t.fail(w, d, failure)
	} else if failure := t.prepare(w, d); failure != "" {
		rolledBack = t.fail(w, d, failure)
	} else if !d.GetStatus().GetWaiting() {
		t.switchOver(w, d, p)
		switch {
		case d.GetSpec().GetPaused():
		case spec.CanaryOpen(d):
			rolledBack = t.canary(w, d, want, replicas)
		default:
			rolledBack = t.judge(w, d, p)
		}
	}
	t.deployments[w.GetMetadata().GetUid()] = d
	if !proto.Equal(old, d) {
		t.batch.Update(d, old.GetMetadata().GetVersion())
	}
	return rolledBack
}

// judge ends a deployment if it is time to.
func (t *tick) judge(w *v1.Workload, d *v1.Deployment, p rollout.Progress) (rolledBack bool) {
	blueGreen := spec.DeploymentStrategy(d, w.GetSpec()) == spec.StrategyBlueGreen
	if blueGreen && p.Complete() && !d.GetStatus().GetSwitched() && d.GetSpec().GetPreviousUid() != "" {
		d.Status.Progress = nil // it waits for an operator, and that is not time without progress
		return false
	}
	v := p.Judge(t.now, t.progressed(w, d, p), spec.ProgressDeadlineOf(w.GetSpec()), blueGreen)
	switch {
	case v.Succeeded:
		d.Status.Phase, d.Status.EndTime = spec.DeploymentSucceeded, timestamppb.New(t.now)
		if spec.CanaryOf(d) != nil {
			d.Status.Weight = 100
		}
		if d.GetSpec().GetPreviousUid() == "" {
			return false // the events of the replicas say enough
		}
		t.event(w, "RolloutSucceeded", fmt.Sprintf("deployment %d: revision %d serves", d.GetSpec().GetNumber(), d.GetSpec().GetRevision()), state.SeverityInfo)
	case v.Failed:
		return t.fail(w, d, t.explainFailure(p, v.Reason))
	default:
		t.later(w.GetMetadata().GetUid(), v.Again)
	}
	return false
}

// explainFailure says which replica keeps a deployment from succeeding, and why.
func (t *tick) explainFailure(p rollout.Progress, why string) string {
	uid := p.Crashed
	if uid == "" {
		uid = p.Unready
	}
	r := t.snap.Replica(uid)
	if r == nil {
		return why
	}
	detail := r.GetStatus().GetUnready()
	if r.GetStatus().GetPhase() != spec.PhaseRunning {
		detail = r.GetStatus().GetReason()
	}
	if p.Crashed != "" {
		why = r.GetMetadata().GetName() + " " + why
	} else {
		why += ": " + r.GetMetadata().GetName() + " does not serve"
	}
	if detail != "" {
		why += ": " + detail
	}
	return why
}

// progressed is when a deployment last made progress. That is stored, because the next leader
// must not begin to count again.
func (t *tick) progressed(w *v1.Workload, d *v1.Deployment, p rollout.Progress) time.Time {
	status := d.GetStatus()
	plausible := t.plausible(status.GetProgressTime().AsTime(), spec.ProgressDeadlineOf(w.GetSpec()))
	if score := int32(p.Score()); status.Progress == nil || score > status.GetProgress() || !plausible {
		status.Progress, status.ProgressTime = proto.Int32(score), timestamppb.New(t.now)
	}
	return status.GetProgressTime().AsTime()
}

// plausible reports whether a stored time from which a period counts is not far in the future. A server whose clock was
// ahead may have recorded it, and the period must not last for days because of that.
func (t *tick) plausible(from time.Time, period time.Duration) bool { return from.Sub(t.now) < period }

// fail ends a deployment that cannot succeed. If an earlier one has succeeded, the workload
// returns to its revision.
func (t *tick) fail(old *v1.Workload, d *v1.Deployment, why string) (rolledBack bool) {
	t.wakeGroup(d)
	t.endRelease(d, fmt.Sprintf("deployment %d has ended: %s", d.GetSpec().GetNumber(), why))
	rollout.Fail(d, t.now, why)
	previous := t.snap.Revision(d.GetSpec().GetPreviousUid())
	if previous == nil {
		t.event(old, "RolloutFailed", fmt.Sprintf("deployment %d: %s", d.GetSpec().GetNumber(), why), state.SeverityWarning)
		return false
	}
	d.Status.Phase, d.Status.Switched, d.Status.Waiting = spec.DeploymentRolledBack, false, false
	w := proto.CloneOf(old)
	spec.ReturnTo(w, previous)
	t.batch.Update(w, old.GetMetadata().GetVersion())
	t.event(w, "RolledBack", fmt.Sprintf("from revision %d to revision %d: %s", d.GetSpec().GetRevision(), previous.GetSpec().GetNumber(), why), state.SeverityWarning)
	return true
}

// switchOver leads the service to the new revision of a blue-green deployment, once all of it
// has proven itself. With a manual switch it also waits until an operator promotes
// the deployment, except to go back.
func (t *tick) switchOver(w *v1.Workload, d *v1.Deployment, p rollout.Progress) {
	if spec.DeploymentStrategy(d, w.GetSpec()) != spec.StrategyBlueGreen || d.GetStatus().GetSwitched() || d.GetSpec().GetPaused() || d.GetSpec().GetAborted() {
		return
	}
	if !p.Complete() || spec.AwaitsPromotion(w.GetSpec(), d) {
		return
	}
	d.Status.Switched, d.Status.SwitchTime = true, timestamppb.New(t.now)
	t.event(w, "Switched", fmt.Sprintf("revision %d gets the traffic", d.GetSpec().GetRevision()), state.SeverityInfo)
}

// steer adds to an update what the deployment says: whether it is paused, where a rollback would
// lead, and whether it keeps the outdated replicas. A blue-green deployment keeps them until some time after the switch,
// because a rollback leads the service back to them.
func (t *tick) steer(w *v1.Workload, u *rollout.Update) {
	if t.awaitsSecret(w.GetStatus().GetRevisionUid()) != "" { // stopping a replica would gain nothing
		defer func() { u.Paused, u.Recreate = true, false }()
	}
	d := t.snap.Deployment(w.GetStatus().GetDeploymentUid())
	if d == nil || d.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() {
		return // none, or one that waits
	}
	u.Paused = d.GetSpec().GetPaused() && spec.DeploymentOpen(d)
	if spec.DeploymentOpen(d) {
		u.Good = d.GetSpec().GetPreviousUid()
	}
	if spec.DeploymentStrategy(d, w.GetSpec()) != spec.StrategyBlueGreen || d.GetStatus().GetPhase() == spec.DeploymentRolledBack {
		return
	}
	switched, keeps := d.GetStatus().GetSwitchTime().AsTime(), spec.KeepOldOf(w.GetSpec())
	until := switched.Add(keeps)
	switch {
	case !d.GetStatus().GetSwitched():
		u.Hold = spec.DeploymentOpen(d)
	case t.now.Before(until) && t.plausible(switched, keeps):
		u.Hold = true
		t.later(w.GetMetadata().GetUid(), until)
	}
}
