package rollout_test

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

// The release command of a singleton needs no lease: a node without servers would stop it and run it again.
func TestReleaseOfASingletonIsNone(t *testing.T) {
	s := spec.Normalized(&v1.WorkloadSpec{Image: "ledger:1", Singleton: true, Release: &v1.Release{Command: []string{"migrate"}}})
	w := &v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "ledger"}, Spec: s, Status: &v1.WorkloadStatus{}}
	of := &v1.Revision{Metadata: &v1.Metadata{Uid: "r"}, Spec: &v1.RevisionSpec{Workload: s}}
	job, revision := rollout.NewRelease(w, of, &v1.Deployment{Metadata: &v1.Metadata{Uid: "d"}, Spec: &v1.DeploymentSpec{Number: 1}}, func() string { return "new" })
	if job.GetSpec().GetSingleton() || revision.GetSpec().GetWorkload().GetSingleton() {
		t.Error("the job is a singleton")
	}
	made := &v1.Workload{ApiVersion: spec.APIVersion, Kind: spec.KindWorkload, Metadata: &v1.Metadata{Name: job.GetMetadata().GetName()}, Spec: job.GetSpec()}
	if err := spec.Validate(made); err != nil {
		t.Errorf("the job is not valid: %v", err)
	}
}
