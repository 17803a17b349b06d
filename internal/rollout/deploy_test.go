package rollout_test

import (
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

// deploy makes the next deployment of a workload whose earlier deployments had these revisions and phases.
func deploy(revision string, before *v1.WorkloadStatus, earlier ...*v1.Deployment) (made, replaced *v1.Deployment) {
	w := &v1.Workload{
		Metadata: &v1.Metadata{Name: "web"},
		Status:   &v1.WorkloadStatus{RevisionUid: revision, Deployment: uint64(len(earlier))},
	}
	return rollout.Deploying{UID: "new", Now: time.Unix(1, 0), Before: before, Earlier: slices.Values(earlier)}.Deploy(w)
}

func deployment(revision, phase string) *v1.Deployment {
	return &v1.Deployment{Spec: &v1.DeploymentSpec{RevisionUid: revision}, Status: &v1.DeploymentStatus{Phase: phase}}
}

func TestDeploymentRollsBackToTheNewestThatSucceeded(t *testing.T) {
	known := &v1.WorkloadStatus{DeploymentUid: "old", RevisionUid: "b"}
	for _, test := range []struct {
		name     string
		revision string
		before   *v1.WorkloadStatus
		earlier  []*v1.Deployment
		want     string
	}{
		{"the first one", "a", nil, nil, ""},
		{"the last one succeeded", "c", known, []*v1.Deployment{deployment("a", "succeeded"), deployment("b", "succeeded")}, "b"},
		{"the last one failed", "c", known, []*v1.Deployment{deployment("a", "succeeded"), deployment("b", "rolled back")}, "a"},
		{"the new one is the last good one", "b", known, []*v1.Deployment{deployment("a", "succeeded"), deployment("b", "succeeded")}, "a"},
		{"none succeeded", "c", known, []*v1.Deployment{deployment("a", "failed"), deployment("b", "failed")}, ""},
		{"an older release kept no deployments", "c", &v1.WorkloadStatus{RevisionUid: "b"}, nil, "b"},
	} {
		if made, _ := deploy(test.revision, test.before, test.earlier...); made.GetSpec().GetPreviousUid() != test.want {
			t.Errorf("%s: it rolls back to %q, want %q", test.name, made.GetSpec().GetPreviousUid(), test.want)
		}
	}
}

func TestDeploymentReplacesTheUnfinishedOne(t *testing.T) {
	for _, phase := range []string{spec.DeploymentPending, spec.DeploymentRunning, spec.DeploymentPaused} {
		made, replaced := deploy("b", &v1.WorkloadStatus{DeploymentUid: "old"}, deployment("a", phase))
		if s := replaced.GetStatus(); s.GetPhase() != spec.DeploymentFailed || s.GetReason() != "replaced by deployment 2" || s.GetEndTime() == nil {
			t.Errorf("one that was %s becomes %v", phase, s)
		}
		if made.GetMetadata().GetName() != "web-2" || made.GetStatus().GetPhase() != spec.DeploymentPending {
			t.Errorf("the new one is %v", made)
		}
	}
	if _, replaced := deploy("b", &v1.WorkloadStatus{DeploymentUid: "old"}, deployment("a", spec.DeploymentSucceeded)); replaced != nil {
		t.Errorf("one that has ended becomes %v", replaced)
	}
}
