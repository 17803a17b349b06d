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
	s.Priority = cron.GetSpec().Priority // which makes no new revision
	run := &v1.Workload{
		ApiVersion: spec.APIVersion, Kind: spec.KindWorkload,
		Metadata: &v1.Metadata{
			Uid: newUID(), Name: name, Namespace: cron.GetMetadata().GetNamespace(), Labels: maps.Clone(cron.GetMetadata().GetLabels()),
		},
		Spec: s,
		Status: &v1.WorkloadStatus{
			Revision: 1, RevisionUid: newUID(), Configuration: cron.GetStatus().GetConfiguration(),
			OwnerUid: cron.GetMetadata().GetUid(), Owner: cron.GetMetadata().GetName(),
		},
	}
	revision := proto.CloneOf(of)
	revision.Metadata = &v1.Metadata{
		Uid: run.GetStatus().GetRevisionUid(), Name: run.GetMetadata().GetUid() + "-1", Namespace: run.GetMetadata().GetNamespace(),
	}
	revision.Spec.WorkloadUid, revision.Spec.Number, revision.Spec.Workload = run.GetMetadata().GetUid(), 1, s
	revision.Spec.Restart, revision.Spec.Trace = 0, ""
	return run, revision
}

// Outcome is how a job has ended, empty if it has not.
func Outcome(job *v1.Workload) string {
	if ended := job.GetStatus().GetJob(); ended.GetRevisionUid() == job.GetStatus().GetRevisionUid() {
		return ended.GetOutcome()
	}
	return ""
}
