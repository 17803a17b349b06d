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
	earlier.Placement, now.Placement = &v1.Placement{Zones: []string{"a"}}, &v1.Placement{Weights: &v1.ScoreWeights{Cost: new(1.0)}}
	if back := spec.RolledBack(now, earlier).GetPlacement(); back.GetWeights().GetCost() != 1 || len(back.GetZones()) != 1 {
		t.Errorf("the placement is %v", back)
	}
	job := func(parallelism, completions int32) *v1.WorkloadSpec {
		return &v1.WorkloadSpec{Image: "web:1", Kind: spec.KindJob, Job: &v1.Job{Parallelism: &parallelism, Completions: &completions}}
	}
	if back := spec.RolledBack(job(4, 10), job(1, 20)); back.GetJob().GetParallelism() != 4 || back.GetJob().GetCompletions() != 20 {
		t.Errorf("the job is %v", back)
	}
}

// What suits only the newer spec does not come along: a rollback must not make five replicas of a singleton, or do work
// that ends by itself twice.
func TestRollbackKeepsTheEarlierSpecValid(t *testing.T) {
	blueGreen := &v1.WorkloadSpec{
		Image: "web:2", Replicas: new(int32(5)), MinAvailable: 2, Update: &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true},
	}
	for name, earlier := range map[string]*v1.WorkloadSpec{
		"a singleton":              {Image: "web:1", Replicas: new(int32(1)), Singleton: true},
		"work that ends by itself": {Image: "web:1", Replicas: new(int32(1)), Restart: &v1.Restart{Policy: "on-failure"}},
	} {
		back := spec.Normalized(spec.RolledBack(blueGreen, earlier))
		w := &v1.Workload{ApiVersion: spec.APIVersion, Kind: spec.KindWorkload, Metadata: &v1.Metadata{Name: "web"}, Spec: back}
		if err := spec.Validate(w); err != nil {
			t.Errorf("%s goes back to %v, which is not valid: %v", name, back, err)
		}
		if !spec.ReplacesNone(back, spec.Normalized(earlier)) {
			t.Errorf("%s goes back to another revision: %v", name, back)
		}
	}
}
