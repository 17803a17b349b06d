package spec_test

import (
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// A rollback restores what makes a revision, and nothing else.
func TestRollbackRestoresOnlyTheRevision(t *testing.T) {
	earlier := &v1.WorkloadSpec{Image: "web:1", Replicas: new(int32(1)), Env: map[string]string{"COLOUR": "red"}}
	now := &v1.WorkloadSpec{Image: "web:2", Replicas: new(int32(5)), MinAvailable: 3, Priority: new(int32(7))}
	back := spec.RolledBack(now, earlier)
	if !spec.ReplacesNone(back, earlier) {
		t.Errorf("replicas of %v would be replaced by %v", earlier, back)
	}
	if back.GetReplicas() != 5 || back.GetMinAvailable() != 3 || back.GetPriority() != 7 {
		t.Errorf("it is %v", back)
	}
	if earlier.GetReplicas() != 1 {
		t.Error("the earlier one was changed")
	}
	job := func(parallelism, completions int32) *v1.WorkloadSpec {
		return &v1.WorkloadSpec{Image: "web:1", Kind: spec.KindJob, Job: &v1.Job{Parallelism: &parallelism, Completions: &completions}}
	}
	if back := spec.RolledBack(job(4, 10), job(1, 20)); back.GetJob().GetParallelism() != 4 || back.GetJob().GetCompletions() != 20 {
		t.Errorf("the job is %v", back)
	}
}
