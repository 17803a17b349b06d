package rollout

import (
	"maps"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// RunName is the name of the job that a cron creates for a time of its schedule. It follows
// from the time, so that there can be only one for each.
func RunName(cron string, at time.Time) string { return cron + at.UTC().Format("-20060102-1504") }

// ExtraRunName is the name of a job that a cron creates outside its schedule.
func ExtraRunName(cron, uid string) string { return cron + "-run-" + uid[len(uid)-8:] }

// NewRun is a job of a cron: the cron's revision under a name of its own.
func NewRun(cron *v1.Workload, of *v1.Revision, name string, newUID func() string) (*v1.Workload, *v1.Revision) {
	s := proto.CloneOf(of.GetSpec().GetWorkload())
	s.Kind, s.Cron = spec.KindJob, nil
	run, revision := newJob(cron, of, s, name, newUID)
	run.Metadata.Labels = maps.Clone(cron.GetMetadata().GetLabels())
	return run, revision
}

// NewRelease is the job that runs the release command of a deployment, which rolls out a
// revision of w: one replica that looks like those of the revision, and is never replaced. It
// has no labels, because services select replicas by the labels of their workloads.
func NewRelease(w *v1.Workload, of *v1.Revision, d *v1.Deployment, newUID func() string) (*v1.Workload, *v1.Revision) {
	s := proto.CloneOf(of.GetSpec().GetWorkload())
	release := s.GetRelease()
	s.Kind, s.Command, s.Args = spec.KindJob, release.GetCommand(), nil
	s.Replicas, s.MinAvailable, s.Ports, s.Probes, s.Update, s.Release, s.DependsOn = nil, 0, nil, nil, nil, nil, nil
	s.Singleton = false // a node stops and restarts a singleton when no server answers, and a release command must not run twice
	s.Restart = nil
	s.Job = &v1.Job{Retries: proto.Int32(0), Deadline: release.GetTimeout()}
	job, revision := newJob(w, of, spec.Normalized(s), spec.ReleaseName(w.GetMetadata().GetName(), d.GetSpec().GetNumber()), newUID)
	job.Status.Deployment, job.Status.DeploymentUid = d.GetSpec().GetNumber(), d.GetMetadata().GetUid()
	return job, revision
}

// newJob is a job that belongs to another workload and runs the image of one of its revisions.
func newJob(owner *v1.Workload, of *v1.Revision, s *v1.WorkloadSpec, name string, newUID func() string) (*v1.Workload, *v1.Revision) {
	s = spec.ForJob(owner.GetSpec(), s)
	job := &v1.Workload{
		ApiVersion: spec.APIVersion, Kind: spec.KindWorkload,
		Metadata: &v1.Metadata{Uid: newUID(), Name: name, Namespace: owner.GetMetadata().GetNamespace()},
		Spec:     s,
		Status: &v1.WorkloadStatus{
			Revision: 1, RevisionUid: newUID(), Configuration: owner.GetStatus().GetConfiguration(),
			OwnerUid: owner.GetMetadata().GetUid(), Owner: owner.GetMetadata().GetName(),
		},
	}
	revision := proto.CloneOf(of)
	revision.Metadata = &v1.Metadata{
		Uid: job.GetStatus().GetRevisionUid(), Name: job.GetMetadata().GetUid() + "-1", Namespace: job.GetMetadata().GetNamespace(),
	}
	revision.Spec.WorkloadUid, revision.Spec.Number, revision.Spec.Workload = job.GetMetadata().GetUid(), 1, s
	revision.Spec.Restart, revision.Spec.Trace = 0, ""
	return job, revision
}

// Outcome is how a job has ended, empty if it has not.
func Outcome(job *v1.Workload) string {
	if ended := job.GetStatus().GetJob(); ended.GetRevisionUid() == job.GetStatus().GetRevisionUid() {
		return ended.GetOutcome()
	}
	return ""
}
