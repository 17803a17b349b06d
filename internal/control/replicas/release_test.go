package replicas

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// releaseWith applies a new revision with a release command.
func (d *deploying) releaseWith(change func(*v1.WorkloadSpec)) {
	d.edit("web", func(b *state.Batch, of *v1.Workload) {
		before := proto.CloneOf(of.GetStatus())
		of.Spec.Release = &v1.Release{Command: []string{"/migrate"}, Timeout: "10m"}
		if change != nil {
			change(of.Spec)
		}
		d.revise(b, of)
		d.record(b, before, of)
	})
}

// releaseJob is the job of the release command with a number.
func (d *deploying) releaseJob(name string) *v1.Workload {
	d.t.Helper()
	job := d.snap().WorkloadByName("default", name)
	if job == nil {
		d.t.Fatalf("there is no job %s", name)
	}
	return job
}

// running counts the live replicas of a workload.
func (d *deploying) running(name string) (n int) {
	for r := range d.snap().ReplicasOf(d.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) {
			n++
		}
	}
	return n
}

// endRelease ends the replica of a release job with an exit code.
func (d *deploying) endRelease(name string, code int32) {
	d.t.Helper()
	var b state.Batch
	for old := range d.snap().ReplicasOf(d.releaseJob(name).GetMetadata().GetUid()) {
		r := proto.CloneOf(old)
		r.Status.Phase, r.Status.LastExit = spec.PhaseCompleted, &v1.Exit{Code: code}
		if code != 0 {
			r.Status.Phase, r.Status.Reason = spec.PhaseFailed, "It exited with an error."
		}
		b.Update(r, old.GetMetadata().GetVersion())
	}
	if b.Len() == 0 {
		d.t.Fatalf("job %s has no replica", name)
	}
	d.apply(&b)
}

// The release command runs once, as a job with the new image. The first replica of the new revision is created when it
// has completed, and lost replicas of the old one are replaced until then.
func TestReleaseCommandRunsBeforeTheFirstNewReplica(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	job := d.releaseJob("web-release-2")
	if s := job.GetSpec(); s.GetKind() != spec.KindJob || strings.Join(s.GetCommand(), " ") != "/migrate" || s.GetJob().GetRetries() != 0 || s.GetJob().GetDeadline() != "10m" || s.GetRelease() != nil {
		t.Errorf("the job is %v", s)
	}
	if err := spec.Validate(&v1.Workload{Metadata: &v1.Metadata{Name: job.GetMetadata().GetName()}, Spec: job.GetSpec()}); err != nil {
		t.Errorf("the job is not valid: %v", err)
	}
	d.wantPhase(spec.DeploymentRunning)
	if got := d.revisions(); d.running("web-release-2") != 1 || got[1] != 3 || got[2] != 0 {
		t.Fatalf("while the release command runs there are %v", got)
	}
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "waits for its release command; see: cloudless logs web-release-2") {
		t.Errorf("the reason is %q", reason)
	}

	d.loseOne()
	d.rest()
	if got := d.revisions(); got[1] != 3 || got[2] != 0 {
		t.Fatalf("after the loss of a replica there are %v", got)
	}

	d.endRelease("web-release-2", 0)
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	if got := d.revisions(); got[2] != 3 || len(got) != 1 {
		t.Errorf("in the end there are %v", got)
	}
	if release := d.deployment().GetStatus().GetRelease(); release.GetPhase() != spec.ReleaseCompleted || d.running("web-release-2") != 0 {
		t.Errorf("the release command is %v", release)
	}
}

// loseOne gives up a replica of web.
func (d *deploying) loseOne() {
	for old := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if spec.Live(old.GetStatus().GetPhase()) {
			r := proto.CloneOf(old)
			r.Status.Phase = spec.PhaseLost
			d.change(func(b *state.Batch) { b.Update(r, old.GetMetadata().GetVersion()) })
			return
		}
	}
}

// If the release command fails, the deployment is rolled back before any replica of it was created.
func TestFailedReleaseCommandRollsBack(t *testing.T) {
	for _, update := range []*v1.Update{nil, {Strategy: spec.StrategyRecreate}, {Strategy: spec.StrategyBlueGreen}} {
		d := newDeploying(t, update)
		d.releaseWith(nil)
		d.rest()
		d.endRelease("web-release-2", 3)
		d.rest()
		d.wantPhase(spec.DeploymentRolledBack)
		if reason := d.deployment().GetStatus().GetReason(); reason != "its release command failed: exit code 3; see: cloudless logs web-release-2" {
			t.Errorf("the reason is %q", reason)
		}
		for r := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
			if r.GetSpec().GetRevision() != 1 || r.GetSpec().GetDesired() == spec.DesiredStopped {
				t.Errorf("%s of revision %d is %s", r.GetMetadata().GetName(), r.GetSpec().GetRevision(), r.GetSpec().GetDesired())
			}
		}
	}
}

// A release command that takes too long is stopped.
func TestReleaseCommandTimesOut(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	d.ahead = 11 * time.Minute
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "its deadline is over") || d.running("web-release-2") != 0 {
		t.Errorf("the reason is %q", reason)
	}
}

// Without an earlier revision, nothing runs after the release command has failed. A restart tries the command again.
func TestFirstReleaseCommandFails(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "8")
	d := &deploying{world: w, feed: w.store.Follow()}
	made := newWorkload(w.newUID(), "web", 3, "1")
	made.Spec.Release = &v1.Release{Command: []string{"/migrate"}, Timeout: "10m"}
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		d.record(b, nil, made)
		b.Create(made)
	})
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.rest()
	d.endRelease("web-release-1", 1)
	d.rest()
	d.wantPhase(spec.DeploymentFailed)
	d.scale("web", 4)
	d.rest()
	if got := d.revisions(); len(got) != 0 {
		t.Fatalf("after the failure there are %v", got)
	}

	d.edit("web", func(b *state.Batch, of *v1.Workload) {
		before := proto.CloneOf(of.GetStatus())
		d.revise(b, of)
		d.recordCause(b, before, of, spec.CauseRestart)
	})
	d.rest()
	d.endRelease("web-release-2", 0)
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	if got := d.revisions(); got[2] != 4 {
		t.Errorf("after the restart there are %v", got)
	}
}

// A new leader goes on with the release command that runs.
func TestReleaseCommandSurvivesChangeOfLeader(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.settle()
	d.engine = Engine{}
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.rest()
	replicas := d.phases("web-release-2")
	if len(replicas) != 1 || replicas[spec.PhaseRunning] != 1 {
		t.Fatalf("the release command has %v", replicas)
	}
	d.engine = Engine{}
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.endRelease("web-release-2", 0)
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
}

// An aborted deployment stops its release command.
func TestAbortStopsReleaseCommand(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	d.order(func(s *v1.DeploymentSpec) { s.Aborted = true })
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if d.running("web-release-2") != 0 || rollout.Outcome(d.releaseJob("web-release-2")) != spec.PhaseFailed {
		t.Error("the release command was not stopped")
	}
	if got := d.deployment().GetStatus().GetRelease().GetPhase(); got != spec.ReleaseStopped {
		t.Errorf("the deployment has ended, and its release command is %q", got)
	}
}

// The release command of the next deployment starts when the one before it has been stopped.
func TestReleaseCommandsNeverRunTogether(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	d.releaseWith(func(s *v1.WorkloadSpec) { s.Env = map[string]string{"A": "1"} })
	d.settle()
	if d.snap().WorkloadByName("default", "web-release-3") != nil {
		t.Fatal("the second release command starts while the first one runs")
	}
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "waits until the job of an earlier release command has ended: web-release-2") {
		t.Errorf("the reason is %q", reason)
	}
	d.rest()
	if d.running("web-release-2") != 0 || d.running("web-release-3") != 1 {
		t.Fatalf("%d and %d run", d.running("web-release-2"), d.running("web-release-3"))
	}
	d.endRelease("web-release-3", 0)
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
}

// A release command whose node is offline may still run there. It is not started elsewhere, and has failed when the node
// is removed.
func TestReleaseCommandIsNotRepeatedElsewhere(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	var node string
	for r := range d.snap().ReplicasOf(d.releaseJob("web-release-2").GetMetadata().GetUid()) {
		node = r.GetSpec().GetNode()
	}
	d.setNode(node, spec.NodeOffline)
	d.rest()
	d.wantPhase(spec.DeploymentRunning)
	if got := d.phases("web-release-2"); len(got) != 1 || got[spec.PhaseRunning] != 1 {
		t.Fatalf("the release command has %v", got)
	}
	gone := d.snap().NodeByName(node)
	d.change(func(b *state.Batch) { b.Delete(state.KindNode, gone.GetMetadata().GetUid()) })
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "node "+node+" was removed") {
		t.Errorf("the reason is %q", reason)
	}
}

// Only a new revision runs the release command: neither a rollback nor a restart does.
func TestRollbackAndRestartRunNoReleaseCommand(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	d.endRelease("web-release-2", 0)
	d.rest()
	for _, cause := range []string{spec.CauseRestart, spec.CauseRollback} {
		d.edit("web", func(b *state.Batch, of *v1.Workload) {
			before := proto.CloneOf(of.GetStatus())
			d.revise(b, of)
			d.recordCause(b, before, of, cause)
		})
		d.rest()
		d.wantPhase(spec.DeploymentSucceeded)
		if d.deployment().GetStatus().GetRelease() != nil {
			t.Errorf("a %s ran the release command", cause)
		}
	}
}

// Release commands go with their workload.
func TestReleaseCommandIsRemovedWithItsWorkload(t *testing.T) {
	d := newDeploying(t, nil)
	d.releaseWith(nil)
	d.rest()
	d.delete("web")
	d.rest()
	if d.snap().Count(state.KindWorkload) != 0 {
		t.Errorf("%d workloads are left", d.snap().Count(state.KindWorkload))
	}
}
