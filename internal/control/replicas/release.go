package replicas

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A release command runs as a job, which the transaction creates that notes it in the
// deployment: there is one for each deployment, whichever server leads. It begins when the jobs
// of earlier deployments have ended, so that two never run at the same time.

// release runs the release command of a deployment. It says what the deployment waits for, or
// why the command failed.
func (t *tick) release(w *v1.Workload, d *v1.Deployment) (waiting, failure string) {
	if !d.GetSpec().GetRelease() {
		return "", ""
	}
	release := d.GetStatus().GetRelease()
	switch release.GetPhase() {
	case "":
		return t.startRelease(w, d)
	case spec.ReleaseCompleted:
		return "", ""
	}
	job := t.snap.Workload(release.GetJobUid())
	logs := spec.Hint(w.GetMetadata().GetNamespace(), "cloudless logs "+release.GetJob())
	switch outcome := rollout.Outcome(job); {
	case job == nil || job.GetMetadata().GetDeleteTime() != nil:
		release.Phase = spec.ReleaseFailed
		return "", fmt.Sprintf("its release command did not complete: job %s was deleted", release.GetJob())
	case outcome == spec.PhaseCompleted:
		release.Phase = spec.ReleaseCompleted
		t.event(w, "Released", fmt.Sprintf("deployment %d: its release command has completed", d.GetSpec().GetNumber()), state.SeverityInfo)
		return "", ""
	case outcome == spec.PhaseFailed:
		release.Phase = spec.ReleaseFailed
		return "", fmt.Sprintf("its release command failed: %s; see: %s", t.whyFailed(job), logs)
	}
	return "waits for its release command; see: " + logs, ""
}

// startRelease creates the job of a release command, as soon as no other one of the workload
// runs.
func (t *tick) startRelease(w *v1.Workload, d *v1.Deployment) (waiting, failure string) {
	revision := t.snap.Revision(d.GetSpec().GetRevisionUid())
	job, first := rollout.NewRelease(w, revision, d, t.newUID)
	name := job.GetMetadata().GetName()
	if earlier := t.endEarlierReleases(w); earlier != "" {
		return "waits until the job of an earlier release command has ended: " + earlier, ""
	}
	if d.GetSpec().GetPaused() {
		return "is paused before its release command", ""
	}
	if t.snap.WorkloadByName(w.GetMetadata().GetNamespace(), name) != nil {
		return "", fmt.Sprintf("its release command cannot run: another workload has the name %s; remove that one", name)
	}
	if most := spec.MostWorkloads(t.snap.Cluster().GetSpec()); t.snap.Count(state.KindWorkload) >= most {
		return "", fmt.Sprintf("its release command cannot run: the cluster allows %d workloads and has as many", most)
	}
	t.batch.Create(first)
	t.batch.Create(job)
	d.Status.Phase = spec.DeploymentRunning
	d.Status.Release = &v1.ReleaseStatus{Job: name, JobUid: job.GetMetadata().GetUid(), Phase: spec.ReleaseRunning}
	t.event(w, "Releasing", fmt.Sprintf("deployment %d: job %s runs the release command before the first replica of revision %d starts",
		d.GetSpec().GetNumber(), name, d.GetSpec().GetRevision()), state.SeverityInfo)
	return "waits for its release command; see: " + spec.Hint(w.GetMetadata().GetNamespace(), "cloudless logs "+name), ""
}

// endEarlierReleases ends the release jobs of deployments that have ended, and names one that
// has a replica which may still run.
func (t *tick) endEarlierReleases(w *v1.Workload) (name string) {
	for e := range t.snap.DeploymentsOf(w.GetMetadata().GetUid()) {
		job := t.snap.Workload(e.GetStatus().GetRelease().GetJobUid())
		if job == nil {
			continue
		}
		if rollout.Outcome(job) == "" || t.hasLive(job) {
			name = job.GetMetadata().GetName()
		}
		if !spec.DeploymentOpen(e) {
			t.endRelease(e, fmt.Sprintf("deployment %d has ended", e.GetSpec().GetNumber()))
		}
	}
	return name
}

// endRelease stops the release command of a deployment if it still runs.
func (t *tick) endRelease(d *v1.Deployment, why string) {
	old := t.snap.Workload(d.GetStatus().GetRelease().GetJobUid())
	uid := old.GetMetadata().GetUid()
	if old == nil || rollout.Outcome(old) != "" || old.GetMetadata().GetDeleteTime() != nil || t.finished[uid] {
		return
	}
	t.finish(old, rollout.JobStep{Outcome: spec.PhaseFailed, Reason: why})
}

// removeReleases deletes the release jobs of a workload that is removed.
func (t *tick) removeReleases(w *v1.Workload) {
	for d := range t.snap.DeploymentsOf(w.GetMetadata().GetUid()) {
		old := t.snap.Workload(d.GetStatus().GetRelease().GetJobUid())
		if uid := old.GetMetadata().GetUid(); old == nil || old.GetMetadata().GetDeleteTime() != nil || t.finished[uid] {
			continue
		}
		job := proto.CloneOf(old)
		job.Metadata.DeleteTime = timestamppb.New(t.now)
		t.finished[job.GetMetadata().GetUid()] = true
		t.batch.Update(job, old.GetMetadata().GetVersion())
	}
}

// wakeOwner makes the workload of a release job due when the last replica of the job has ended:
// the release command of a later deployment may wait for that.
func (t *tick) wakeOwner(job *v1.Workload) {
	if spec.IsRelease(job) && rollout.Outcome(job) != "" && !t.hasLive(job) && openDeployment(t.snap, t.snap.Workload(job.GetStatus().GetOwnerUid())) != nil {
		t.left.Workloads[job.GetStatus().GetOwnerUid()] = true
	}
}

func (t *tick) hasLive(w *v1.Workload) bool {
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) {
			return true
		}
	}
	return false
}

// whyFailed says how the replica of a release job ended, or else why the job failed.
func (t *tick) whyFailed(job *v1.Workload) string {
	for r := range t.snap.ReplicasOf(job.GetMetadata().GetUid()) {
		status := r.GetStatus()
		switch {
		case status.GetPhase() == spec.PhaseFailed && status.GetLastExit().GetCode() != 0:
			return fmt.Sprintf("exit code %d", status.GetLastExit().GetCode())
		case spec.Ended(status.GetPhase()) && status.GetReason() != "":
			return strings.TrimSuffix(status.GetReason(), ".")
		case status.GetPhase() == spec.PhaseStopped && r.GetSpec().GetStopReason() != "":
			return strings.TrimSuffix(r.GetSpec().GetStopReason(), ".")
		}
	}
	return job.GetStatus().GetJob().GetReason()
}
