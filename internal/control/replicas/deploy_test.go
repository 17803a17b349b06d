package replicas

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// deploying is a world with one workload, web, and an engine that remembers from tick to tick.
type deploying struct {
	*world
	engine Engine
	feed   *state.Follower
	// ahead is how far the clock is ahead of the changes.
	ahead time.Duration
}

// newDeploying deploys three replicas on three nodes with room for more.
func newDeploying(t *testing.T, update *v1.Update) *deploying {
	w := newWorld(t)
	for _, name := range nodeNames {
		w.addNode(name, "8")
	}
	d := &deploying{world: w, feed: w.store.Follow()}
	made := newWorkload(w.newUID(), "web", 3, "1")
	made.Spec.Update = update
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		d.record(b, nil, made)
		b.Create(made)
	})
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	return d
}

func (d *deploying) record(b *state.Batch, before *v1.WorkloadStatus, of *v1.Workload) {
	d.recordCause(b, before, of, spec.CauseApply)
}

func (d *deploying) recordCause(b *state.Batch, before *v1.WorkloadStatus, of *v1.Workload, cause string) {
	d.recordIn(b, before, of, cause, "")
}

// recordIn makes a deployment that belongs to a group.
func (d *deploying) recordIn(b *state.Batch, before *v1.WorkloadStatus, of *v1.Workload, cause, group string) {
	made, replaced := rollout.Deploying{
		UID: d.newUID(), Now: d.now(), Cause: cause, Author: "alice",
		Before: before, Earlier: d.snap().DeploymentsOf(of.GetMetadata().GetUid()),
	}.Deploy(of)
	made.Spec.Group = group
	b.Create(made)
	if replaced != nil {
		b.Update(replaced, replaced.GetMetadata().GetVersion())
	}
}

// release applies a new revision.
func (d *deploying) release() {
	d.edit("web", func(b *state.Batch, of *v1.Workload) {
		before := proto.CloneOf(of.GetStatus())
		d.revise(b, of)
		d.record(b, before, of)
	})
}

// settle lets the engine do everything that it has to do now.
func (d *deploying) settle() (ticked bool) {
	for {
		news := d.feed.Newest()
		d.engine.Follow(news.Snapshot, news.Changes)
		d.engine.Elapsed(d.now().Add(d.ahead))
		step := d.engine.Settle(d.now().Add(d.ahead), d.newUID)
		if step == nil {
			return ticked
		}
		tx := step.Batch.Transaction(d.now())
		d.apply(step.Batch)
		d.engine.Agreed(step, tx, state.Result{})
		ticked = true
	}
}

// rest lets the engine and the nodes take turns until nothing changes any more.
func (d *deploying) rest() {
	for d.settle() || d.work() {
		d.work()
	}
}

func (d *deploying) web() *v1.Workload { return d.snap().WorkloadByName("default", "web") }

func (d *deploying) deployment() *v1.Deployment {
	return d.snap().Deployment(d.web().GetStatus().GetDeploymentUid())
}

func (d *deploying) wantPhase(want string) {
	d.t.Helper()
	if got := d.deployment(); got.GetStatus().GetPhase() != want {
		d.t.Fatalf("the deployment is %q (%s), want %q", got.GetStatus().GetPhase(), got.GetStatus().GetReason(), want)
	}
}

// spoil changes the replicas of the current revision.
func (d *deploying) spoil(f func(*v1.ReplicaStatus)) {
	var b state.Batch
	for old := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if old.GetSpec().GetRevisionUid() == d.web().GetStatus().GetRevisionUid() && spec.Live(old.GetStatus().GetPhase()) {
			r := proto.CloneOf(old)
			f(r.Status)
			b.Update(r, old.GetMetadata().GetVersion())
		}
	}
	d.apply(&b)
}

// revisions counts the live, wanted replicas by revision number.
func (d *deploying) revisions() map[uint64]int {
	counts := map[uint64]int{}
	for r := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetDesired() != spec.DesiredStopped {
			counts[r.GetSpec().GetRevision()]++
		}
	}
	return counts
}

func (d *deploying) order(f func(*v1.DeploymentSpec)) {
	old := d.deployment()
	asked := proto.CloneOf(old)
	f(asked.Spec)
	d.change(func(b *state.Batch) { b.Update(asked, old.GetMetadata().GetVersion()) })
}

// A release whose program ends again and again is rolled back, and no replica of the good revision is touched.
func TestCrashingReleaseIsRolledBack(t *testing.T) {
	d := newDeploying(t, nil)
	good := d.web().GetStatus().GetRevisionUid()
	d.release()
	d.settle()
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.Restarts, s.Reason = spec.PhaseBackoff, 1, "It exited with code 1."
	})
	d.settle()
	d.wantPhase(spec.DeploymentRunning)
	if got := d.revisions(); got[1] != 3 || got[2] != 1 {
		t.Fatalf("while the release is tried there are %v", got)
	}
	d.spoil(func(s *v1.ReplicaStatus) { s.Restarts = 2 })
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if w := d.web(); w.GetStatus().GetRevisionUid() != good || w.GetStatus().GetRevision() != 1 {
		t.Errorf("the workload is at revision %d", w.GetStatus().GetRevision())
	}
	if got := d.revisions(); got[1] != 3 || len(got) != 1 {
		t.Errorf("after the rollback there are %v", got)
	}
	for r := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if r.GetSpec().GetRevision() == 1 && r.GetSpec().GetDesired() == spec.DesiredStopped {
			t.Errorf("%s of the good revision was stopped", r.GetMetadata().GetName())
		}
	}
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "ended 3 times: It exited with code 1.") {
		t.Errorf("the reason is %q", reason)
	}
}

// A program may end soon after its readiness probe has passed. So no replica of the good revision goes before a new one
// has served for a while. The other new ones only have to be ready.
func TestReadyReleaseProvesItselfByOneReplica(t *testing.T) {
	d := newDeploying(t, nil)
	d.edit("web", func(b *state.Batch, of *v1.Workload) {
		before := proto.CloneOf(of.GetStatus())
		of.Spec.Probes = &v1.Probes{Readiness: &v1.Probe{Tcp: &v1.TcpProbe{}}}
		d.revise(b, of)
		d.record(b, before, of)
	})
	d.settle()
	d.work()
	settling := func(s *v1.ReplicaStatus) { s.Phase, s.Settling = spec.PhaseRunning, true }
	d.spoil(settling)
	d.settle()
	if got := d.revisions(); got[1] != 3 || got[2] != 1 {
		t.Fatalf("while the first new replica has yet to prove itself there are %v", got)
	}
	d.spoil(func(s *v1.ReplicaStatus) { s.Settling = false })
	for d.settle() || d.work() {
		d.spoil(func(s *v1.ReplicaStatus) {
			if s.GetPhase() == spec.PhasePreparing {
				settling(s)
			}
		})
	}
	d.wantPhase(spec.DeploymentSucceeded)
	steady := 0
	for r := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if spec.Steady(r) {
			steady++
		}
	}
	if steady != 1 {
		t.Errorf("%d replicas had to prove themselves", steady)
	}
}

// A release that never serves is rolled back when there was no progress for the deadline. Progress extends it.
func TestReleaseWithoutProgressIsRolledBack(t *testing.T) {
	d := newDeploying(t, &v1.Update{ProgressDeadline: "1m"})
	d.release()
	d.settle()
	d.work()
	d.work()
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.Unready = spec.PhaseRunning, "It does not listen on port 80 yet."
	})
	d.settle()
	d.ahead = 50 * time.Second
	d.settle()
	d.wantPhase(spec.DeploymentRunning)
	d.ahead = 70 * time.Second
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "no progress for 1m") || !strings.Contains(reason, "does not listen on port 80") {
		t.Errorf("the reason is %q", reason)
	}
}

// The first release has no revision to go back to. It fails, and its replicas are tried again.
func TestFirstReleaseFails(t *testing.T) {
	d := newDeploying(t, nil)
	d.edit("web", func(b *state.Batch, of *v1.Workload) { of.Status.Deployment = 0 })
	old := d.deployment()
	failed := proto.CloneOf(old)
	failed.Status.Phase = spec.DeploymentRunning
	d.change(func(b *state.Batch) { b.Update(failed, old.GetMetadata().GetVersion()) })
	d.spoil(func(s *v1.ReplicaStatus) { s.Phase, s.Restarts = spec.PhaseBackoff, 5 })
	d.settle()
	d.wantPhase(spec.DeploymentFailed)
	if got := d.revisions(); got[1] != 3 {
		t.Errorf("there are %v", got)
	}
}

// Pausing stops a release where it is, resuming continues it, and aborting goes back.
func TestPausedAndAbortedRelease(t *testing.T) {
	d := newDeploying(t, nil)
	d.release()
	d.order(func(s *v1.DeploymentSpec) { s.Paused = true })
	d.rest()
	if got := d.revisions(); got[1] != 3 || got[2] != 0 {
		t.Fatalf("a paused release has made %v", got)
	}
	d.order(func(s *v1.DeploymentSpec) { s.Paused = false })
	d.settle()
	d.order(func(s *v1.DeploymentSpec) { s.Aborted = true })
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if got := d.revisions(); got[1] != 3 || len(got) != 1 {
		t.Errorf("after the abort there are %v", got)
	}
}

// A blue-green release starts a whole new set, switches once, and keeps the old set for a while.
func TestBlueGreenRelease(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, KeepOld: "1m", ManualSwitch: true})
	d.release()
	d.rest()
	if got := d.revisions(); got[1] != 3 || got[2] != 3 {
		t.Fatalf("before the switch there are %v", got)
	}
	d.wantPhase(spec.DeploymentRunning)
	if d.deployment().GetStatus().GetSwitched() {
		t.Fatal("it has switched by itself")
	}
	d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	if got := d.revisions(); !d.deployment().GetStatus().GetSwitched() || got[1] != 3 || got[2] != 3 {
		t.Fatalf("after the switch there are %v", got)
	}
	d.ahead = 2 * time.Minute
	d.rest()
	if got := d.revisions(); got[1] != 0 || got[2] != 3 {
		t.Errorf("in the end there are %v", got)
	}
}

// An operator who promotes too early does not lead the traffic to replicas that do not serve.
func TestPromotedReleaseSwitchesWhenItServes(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true})
	d.release()
	d.settle()
	d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
	d.settle()
	if d.deployment().GetStatus().GetSwitched() {
		t.Fatal("it has switched before a replica served")
	}
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	if !d.deployment().GetStatus().GetSwitched() {
		t.Error("it has not switched")
	}
}

// A release within the time for which the old set is kept stops the set without traffic, and none of the one with it.
func TestReleaseSoonAfterASwitch(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, KeepOld: "10m", ManualSwitch: true})
	d.release()
	d.rest()
	d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
	d.rest()
	if got := d.revisions(); got[1] != 3 || got[2] != 3 {
		t.Fatalf("after the switch there are %v", got)
	}
	d.release()
	d.rest()
	if got := d.revisions(); got[1] != 0 || got[2] != 3 || got[3] != 3 {
		t.Errorf("before the next switch there are %v", got)
	}
}

// A server whose clock was ahead does not keep a deployment from failing for days.
func TestClockThatWasAheadGivesNoMoreTime(t *testing.T) {
	d := newDeploying(t, &v1.Update{ProgressDeadline: "1m"})
	d.release()
	old := d.deployment()
	ahead := proto.CloneOf(old)
	ahead.Status.ProgressTime = timestamppb.New(d.now().Add(48 * time.Hour))
	d.change(func(b *state.Batch) { b.Update(ahead, old.GetMetadata().GetVersion()) })
	d.settle()
	d.work()
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.Unready = spec.PhaseRunning, "It does not listen on port 80 yet."
	})
	d.settle()
	d.ahead = 70 * time.Second
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
}

// Another strategy concerns the next deployment: an open one goes on as it began.
func TestOpenDeploymentKeepsItsStrategy(t *testing.T) {
	d := newDeploying(t, nil)
	d.release()
	d.settle()
	d.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.Update = &v1.Update{Strategy: spec.StrategyBlueGreen} })
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	if got := d.revisions(); got[1] != 0 || got[2] != 3 || d.deployment().GetStatus().GetSwitched() {
		t.Errorf("a rolling deployment ends with %v", got)
	}
	d.release()
	d.settle()
	d.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.Update = nil })
	d.rest()
	if got := d.revisions(); got[2] != 3 || got[3] != 3 || !d.deployment().GetStatus().GetSwitched() {
		t.Errorf("a blue-green deployment ends with %v", got)
	}
}

// manualSwitch is for new revisions. A rollback switches back at once, because the old set is still complete.
func TestRollbackOfABlueGreenReleaseSwitchesAtOnce(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true})
	good := d.snap().Revision(d.web().GetStatus().GetRevisionUid())
	d.release()
	d.rest()
	d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	for _, old := range []int{3, 0} {
		if old == 0 { // forward again, and back when the old set is gone
			d.release()
			d.rest()
			d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
			d.rest()
			d.ahead = time.Hour
			d.rest()
		}
		if got := d.revisions(); got[1] != old {
			t.Fatalf("before the rollback there are %v", got)
		}
		d.edit("web", func(b *state.Batch, of *v1.Workload) {
			before := proto.CloneOf(of.GetStatus())
			spec.ReturnTo(of, good)
			d.recordCause(b, before, of, spec.CauseRollback)
		})
		d.settle()
		if got := d.deployment().GetStatus().GetSwitched(); got != (old == 3) {
			t.Fatalf("with %d replicas of the good revision, switched at once is %t", old, got)
		}
		d.rest()
		d.wantPhase(spec.DeploymentSucceeded)
		if !d.deployment().GetStatus().GetSwitched() {
			t.Fatal("it never switches back")
		}
	}
}

// An operator cannot switch to a set that does not serve. If it never does, the deployment is rolled back.
func TestPromotedReleaseSwitchesOnlyWhenComplete(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true, ProgressDeadline: "1m"})
	d.release()
	d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
	d.settle()
	d.work()
	d.work()
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.Unready = spec.PhaseRunning, "It does not listen on port 80 yet."
	})
	d.settle()
	if d.deployment().GetStatus().GetSwitched() {
		t.Fatal("it switches to replicas that do not serve")
	}
	d.ahead = 2 * time.Minute
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if d.deployment().GetStatus().GetSwitched() {
		t.Error("it has switched")
	}
}

// Another leader continues to count where the last one was.
func TestProgressDeadlineSurvivesChangesOfLeader(t *testing.T) {
	d := newDeploying(t, &v1.Update{ProgressDeadline: "1m"})
	d.release()
	d.settle()
	d.work()
	d.work()
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.Unready = spec.PhaseRunning, "It does not listen on port 80 yet."
	})
	d.settle()
	for _, ahead := range []time.Duration{30, 50, 70} {
		d.ahead = ahead * time.Second
		d.engine = Engine{}
		d.engine.Begin(d.feed.Newest().Snapshot)
		d.settle()
	}
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
}

// Progress is stored when it is made, and at no other time.
func TestProgressIsWrittenOnlyWhenItIsMade(t *testing.T) {
	d := newDeploying(t, &v1.Update{ProgressDeadline: "1m"})
	d.release()
	d.settle()
	begun := d.deployment()
	for range 5 { // a flapping replica is no progress
		d.ahead += time.Second
		d.spoil(func(s *v1.ReplicaStatus) { s.Phase, s.Unready = spec.PhaseRunning, "It does not answer." })
		d.settle()
	}
	if got := d.deployment(); got.GetMetadata().GetVersion() != begun.GetMetadata().GetVersion() {
		t.Errorf("without progress, %v was written", got.GetStatus())
	}
	d.spoil(func(s *v1.ReplicaStatus) { s.Unready = "" })
	d.settle()
	if got := d.deployment().GetStatus(); !got.GetProgressTime().AsTime().After(begun.GetStatus().GetProgressTime().AsTime()) || got.GetProgress() <= begun.GetStatus().GetProgress() {
		t.Errorf("with progress, the status is %v", got)
	}
}

// The time for which a complete set waits for an operator is not time without progress.
func TestCompleteSetThatWaitsMayFlap(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true, ProgressDeadline: "1m"})
	d.release()
	d.rest()
	d.ahead = 24 * time.Hour
	d.spoil(func(s *v1.ReplicaStatus) { s.Unready = "It does not answer." })
	d.settle()
	d.wantPhase(spec.DeploymentRunning)
	d.ahead += 2 * time.Minute
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
}

// An image that cannot be pulled fails the first deployment, too, and the reason says so.
func TestFirstReleaseWhoseImageCannotBePulledFails(t *testing.T) {
	d := &deploying{world: newWorld(t)}
	d.addNode("a", "8")
	d.feed = d.store.Follow()
	made := newWorkload(d.newUID(), "web", 1, "1")
	made.Spec.Update = &v1.Update{ProgressDeadline: "1m"}
	d.change(func(b *state.Batch) {
		d.revise(b, made)
		d.record(b, nil, made)
		b.Create(made)
	})
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.settle()
	d.spoil(func(s *v1.ReplicaStatus) { s.Phase, s.Reason = spec.PhasePreparing, "pull web:1: not found" })
	d.settle()
	d.wantPhase(spec.DeploymentRunning)
	d.ahead = 70 * time.Second
	d.settle()
	d.wantPhase(spec.DeploymentFailed)
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "no progress for 1m") || !strings.Contains(reason, "pull web:1: not found") {
		t.Errorf("the reason is %q", reason)
	}
}

// A deployment that waits for an operator for days is no reason to give up lostAfter.
func TestDeploymentThatWaitsForPromotionKeepsLostAfter(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true})
	d.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.LostAfter = "1h" })
	replica := slices.Collect(d.snap().ReplicasOf(d.web().GetMetadata().GetUid()))[0]
	d.release()
	d.settle()
	if at := placement.LostAt(d.snap(), d.web(), replica); !at.IsZero() {
		t.Errorf("while replicas move, the update waits for a node until %s", at)
	}
	d.rest()
	d.wantPhase(spec.DeploymentRunning)
	seen := d.now()
	d.loseNode(replica.GetSpec().GetNode(), seen)
	if at := placement.LostAt(d.snap(), d.web(), replica); !at.Equal(seen.Add(time.Hour)) {
		t.Errorf("the replica is lost at %s, want an hour after %s", at, seen)
	}
}
