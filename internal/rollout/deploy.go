package rollout

import (
	"fmt"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// Deploying is what a new deployment is made from.
type Deploying struct {
	UID string
	Now time.Time
	// Cause is what the user did, and Author who did it.
	Cause, Author string
	// Before is the status of the workload before the change; nil if the workload is new.
	Before *v1.WorkloadStatus
	// Earlier are the deployments of the workload by number.
	Earlier iter.Seq[*v1.Deployment]
}

// Deploy returns the deployment of the current revision of a workload, and names it in the status of the workload. If an
// earlier deployment has not ended yet, replaced is that one with its end.
func (d Deploying) Deploy(w *v1.Workload) (made, replaced *v1.Deployment) {
	w.Status.Deployment++
	w.Status.DeploymentUid = d.UID
	release := d.releases(w)
	number, now := w.GetStatus().GetDeployment(), timestamppb.New(d.Now)
	previous, previousUID := d.lastGood(w.GetStatus().GetRevisionUid())
	for e := range d.Earlier {
		if spec.DeploymentOpen(e) {
			replaced = proto.CloneOf(e)
			Fail(replaced, d.Now, fmt.Sprintf("replaced by deployment %d", number))
		}
	}
	made = &v1.Deployment{
		ApiVersion: spec.APIVersion, Kind: "Deployment",
		Metadata: &v1.Metadata{
			Uid: d.UID, Name: fmt.Sprintf("%s-%d", w.GetMetadata().GetName(), number), Namespace: w.GetMetadata().GetNamespace(),
		},
		Spec: &v1.DeploymentSpec{
			WorkloadUid: w.GetMetadata().GetUid(), Workload: w.GetMetadata().GetName(), Number: number,
			Revision: w.GetStatus().GetRevision(), RevisionUid: w.GetStatus().GetRevisionUid(),
			Previous: previous, PreviousUid: previousUID, Cause: d.Cause, Author: d.Author, Release: release, Strategy: spec.StrategyOf(w.GetSpec()),
		},
		Status: &v1.DeploymentStatus{
			Phase: spec.DeploymentPending, StartTime: now, ProgressTime: now,
			Waiting: release || len(w.GetSpec().GetDependsOn()) > 0 && (d.Cause == spec.CauseCreate || d.Cause == spec.CauseApply),
		},
	}
	if made.GetSpec().GetStrategy() == spec.StrategyCanary {
		d.asCanary(w, made)
	}
	return made, replaced
}

// asCanary keeps the canary block of the workload, because changing it later concerns the next deployment. A rollback goes
// without steps: its revision has had all the traffic before.
func (d Deploying) asCanary(w *v1.Workload, made *v1.Deployment) {
	if d.Cause == spec.CauseRollback {
		made.Spec.Strategy = spec.StrategyRolling
		return
	}
	if made.Spec.Canary = proto.CloneOf(w.GetSpec().GetUpdate().GetCanary()); made.Spec.Canary == nil {
		made.Spec.Canary = &v1.Canary{}
	}
}

// Fail ends a deployment that did not succeed, and with it its release command.
func Fail(d *v1.Deployment, now time.Time, why string) {
	d.Status.Phase, d.Status.EndTime, d.Status.Reason = spec.DeploymentFailed, timestamppb.New(now), why
	d.Status.Weight = 0
	if release := d.GetStatus().GetRelease(); release.GetPhase() == spec.ReleaseRunning {
		release.Phase = spec.ReleaseStopped
	}
}

// releases reports whether the release command of a workload runs first. A rollback or a restart brings no new release.
// But a restart after the command has failed tries the command again.
func (d Deploying) releases(w *v1.Workload) bool {
	switch {
	case w.GetSpec().GetRelease() == nil || d.Cause == spec.CauseRollback:
		return false
	case d.Cause != spec.CauseRestart:
		return true
	}
	for e := range d.Earlier {
		if e.GetMetadata().GetUid() == d.Before.GetDeploymentUid() {
			return e.GetSpec().GetRelease() && e.GetStatus().GetWaiting() && e.GetSpec().GetRevisionUid() == d.Before.GetRevisionUid()
		}
	}
	return false
}

// lastGood is the revision of the newest deployment that succeeded, other than the new revision itself. A workload from
// a release without deployments has its current revision.
func (d Deploying) lastGood(revision string) (number uint64, uid string) {
	if d.Before.GetDeploymentUid() == "" && d.Before.GetRevisionUid() != revision {
		return d.Before.GetRevision(), d.Before.GetRevisionUid()
	}
	good := LastGood(d.Earlier, func(e *v1.Deployment) bool { return e.GetSpec().GetRevisionUid() != revision })
	return good.GetSpec().GetRevision(), good.GetSpec().GetRevisionUid()
}

// LastGood is the newest deployment that succeeded and that suits, nil if there is none. The deployments are ordered by
// number.
func LastGood(deployments iter.Seq[*v1.Deployment], suits func(*v1.Deployment) bool) (good *v1.Deployment) {
	for d := range deployments {
		if d.GetStatus().GetPhase() == spec.DeploymentSucceeded && suits(d) {
			good = d
		}
	}
	return good
}
