package replicas

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// newCanary releases a new revision of a service with four replicas by the steps 5 % and 50 %, each of which holds for ten
// minutes.
func newCanary(t *testing.T, analysis *v1.CanaryAnalysis) *deploying {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyCanary, Canary: &v1.Canary{Steps: []string{"5%", "50%"}, Bake: "10m", Analysis: analysis}})
	d.resize(4)
	d.release()
	d.rest()
	return d
}

func (d *deploying) resize(count int32) {
	d.scale("web", count)
	d.rest()
}

func (d *deploying) pass(by time.Duration) {
	d.ahead += by
	d.rest()
}

// wantStep checks the step and the share of the traffic, and how many replicas of the old and the new revision there are.
func (d *deploying) wantStep(step, weight int32, old, fresh int) {
	d.t.Helper()
	status, got := d.deployment().GetStatus(), d.revisions()
	if status.GetStep() != step || status.GetWeight() != weight || got[1] != old || got[2] != fresh {
		d.t.Fatalf("it is in step %d with %d%%, and there are %v (%s: %s)", status.GetStep(), status.GetWeight(), got, status.GetPhase(), status.GetReason())
	}
}

// wantKept checks that no replica of the first revision was stopped.
func (d *deploying) wantKept() {
	d.t.Helper()
	for r := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if r.GetSpec().GetRevision() == 1 && r.GetSpec().GetDesired() == spec.DesiredStopped {
			d.t.Fatalf("%s of the good revision was stopped", r.GetMetadata().GetName())
		}
	}
}

func TestCanaryGoesByItsSteps(t *testing.T) {
	d := newCanary(t, nil)
	d.wantStep(1, 5, 4, 1)
	d.pass(9 * time.Minute)
	d.wantStep(1, 5, 4, 1)
	d.pass(2 * time.Minute)
	d.wantStep(2, 50, 4, 2)
	d.wantKept()
	d.pass(11 * time.Minute)
	d.wantPhase(spec.DeploymentSucceeded)
	d.wantStep(3, 100, 0, 4)
}

// The share grows when all replicas of the step have proven themselves, and the step holds from then on.
func TestCanaryGetsItsShareWhenItsReplicasAreSteady(t *testing.T) {
	d := newCanary(t, nil)
	d.ahead += 11 * time.Minute
	d.settle()
	d.wantStep(2, 5, 4, 2)
	d.work()
	d.spoil(func(s *v1.ReplicaStatus) { s.Phase, s.Settling = spec.PhaseRunning, true })
	d.settle()
	d.wantStep(2, 5, 4, 2)
	d.spoil(func(s *v1.ReplicaStatus) { s.Settling = false })
	d.settle()
	d.wantStep(2, 50, 4, 2)
}

func TestCanaryThatRestartsIsTakenBack(t *testing.T) {
	d := newCanary(t, nil)
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.LastExit = spec.PhaseBackoff, &v1.Exit{Code: 3, Reason: "It exited with code 3."}
	})
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	d.wantStep(1, 0, 4, 0)
	d.wantKept()
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "have restarted once, and no restart is allowed: web-") || !strings.Contains(reason, "It exited with code 3.") {
		t.Errorf("the reason is %q", reason)
	}
}

func TestCanaryMayRestartAsOftenAsItsAnalysisSays(t *testing.T) {
	d := newCanary(t, &v1.CanaryAnalysis{MaxRestarts: proto.Int32(1)})
	d.spoil(func(s *v1.ReplicaStatus) { s.Restarts = 1 })
	d.rest()
	d.wantStep(1, 5, 4, 1)
	d.spoil(func(s *v1.ReplicaStatus) { s.Restarts = 2 })
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
}

func TestCanaryThatFailsItsProbeIsTakenBack(t *testing.T) {
	d := newCanary(t, nil)
	d.spoil(func(s *v1.ReplicaStatus) { s.Unready = "Its readiness probe got status 500." })
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	if reason := d.deployment().GetStatus().GetReason(); !strings.Contains(reason, "does not serve any more: Its readiness probe got status 500.") {
		t.Errorf("the reason is %q", reason)
	}
}

func TestCanaryThatNeverServesIsTakenBack(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyCanary, ProgressDeadline: "1m"})
	d.release()
	d.settle()
	d.work()
	d.spoil(func(s *v1.ReplicaStatus) {
		s.Phase, s.Unready = spec.PhaseRunning, "It does not listen on port 80 yet."
	})
	d.settle()
	d.wantStep(1, 0, 3, 1)
	d.pass(2 * time.Minute)
	d.wantPhase(spec.DeploymentRolledBack)
	d.wantKept()
}

// answered is what the new revision has answered.
type answered struct {
	requests, errors uint64
	p99              time.Duration
	asked            []time.Time
}

func (a *answered) Revision(_ string, since time.Time) (requests, errors uint64, p99 time.Duration) {
	a.asked = append(a.asked, since)
	return a.requests, a.errors, a.p99
}

func TestCanaryIsJudgedByItsRequests(t *testing.T) {
	for name, c := range map[string]struct {
		seen answered
		want string
	}{
		"errors": {answered{requests: 200, errors: 7}, "7 of 200 requests to the new revision have failed (3.5%), and at most 1% may"},
		"slow":   {answered{requests: 200, p99: 600 * time.Millisecond}, "the P99 of 200 requests to the new revision is 600ms, and at most 500ms is allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDeploying(t, &v1.Update{Strategy: spec.StrategyCanary, Canary: &v1.Canary{Analysis: &v1.CanaryAnalysis{MaxErrorRate: "1%", MaxP99: "500ms"}}})
			seen := &answered{requests: 49, errors: 49, p99: time.Minute}
			d.engine.Traffic = seen
			d.engine.Begin(d.feed.Newest().Snapshot)
			d.release()
			d.rest()
			if status := d.deployment().GetStatus(); status.GetWeight() != 5 || !strings.Contains(status.GetAnalysis(), "once the step has had 50 requests") {
				t.Fatalf("with few requests it is %v", status)
			}
			*seen = c.seen
			d.pass(2 * time.Second) // nothing changes, and the engine looks again by itself
			d.wantPhase(spec.DeploymentRolledBack)
			if got := d.deployment().GetStatus().GetReason(); got != c.want {
				t.Errorf("the reason is %q, want %q", got, c.want)
			}
			for _, since := range seen.asked {
				if since.After(d.now().Add(d.ahead)) || since.IsZero() {
					t.Errorf("requests since %s were asked for", since)
				}
			}
		})
	}
}

// While the replicas of the next step start, those of the step before have their share of the traffic and are judged.
func TestCanaryIsJudgedOnTheWayToTheNextStep(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyCanary, Canary: &v1.Canary{
		Steps: []string{"5%", "50%"}, Bake: "10m", Analysis: &v1.CanaryAnalysis{MaxErrorRate: "1%"},
	}})
	d.resize(4)
	seen := &answered{requests: 1000}
	d.engine.Traffic = seen
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.release()
	d.rest()
	d.ahead += 11 * time.Minute
	d.settle() // the replica of the second step does not start yet
	d.wantStep(2, 5, 4, 2)
	begun := d.now().Add(d.ahead)
	seen.requests, seen.errors, seen.asked = 60, 30, nil
	d.ahead += 2 * time.Second
	d.settle()
	d.wantPhase(spec.DeploymentRolledBack)
	for _, since := range seen.asked {
		if since.Before(begun.Add(-time.Minute)) {
			t.Errorf("requests since %s were asked for, and the step ended at %s", since, begun)
		}
	}
}

func TestPromotionSkipsTheRestOfAStep(t *testing.T) {
	d := newCanary(t, nil)
	d.orderAll(func(d *v1.Deployment) { rollout.PromoteCanary(d, false) })
	d.wantStep(2, 50, 4, 2)
	d.orderAll(func(d *v1.Deployment) { rollout.PromoteCanary(d, false) })
	d.wantPhase(spec.DeploymentSucceeded)

	d = newCanary(t, nil)
	d.orderAll(func(d *v1.Deployment) { rollout.PromoteCanary(d, true) })
	d.wantPhase(spec.DeploymentSucceeded)
	d.wantStep(3, 100, 0, 4)
}

func (d *deploying) orderAll(f func(*v1.Deployment)) {
	old := d.deployment()
	asked := proto.CloneOf(old)
	f(asked)
	d.change(func(b *state.Batch) { b.Update(asked, old.GetMetadata().GetVersion()) })
	d.rest()
}

// A pause keeps the share, and its time does not count. Aborting goes back.
func TestPausedAndAbortedCanary(t *testing.T) {
	d := newCanary(t, nil)
	d.orderAll(func(one *v1.Deployment) { rollout.Pause(one, d.now().Add(d.ahead)) })
	d.pass(time.Hour)
	d.wantStep(1, 5, 4, 1)
	d.orderAll(func(one *v1.Deployment) { rollout.Resume(one, d.now().Add(d.ahead)) })
	d.pass(9 * time.Minute)
	d.wantStep(1, 5, 4, 1)
	d.pass(2 * time.Minute)
	d.wantStep(2, 50, 4, 2)
	d.orderAll(func(one *v1.Deployment) { rollout.Abort(one) })
	d.wantPhase(spec.DeploymentRolledBack)
	d.wantStep(2, 0, 4, 0)
	d.wantKept()
}

// The next leader goes on where the last one stopped.
func TestStepOfACanarySurvivesAChangeOfLeader(t *testing.T) {
	d := newCanary(t, nil)
	d.ahead += 9 * time.Minute
	d.engine = Engine{}
	d.engine.Begin(d.feed.Newest().Snapshot)
	d.rest()
	d.wantStep(1, 5, 4, 1)
	d.pass(2 * time.Minute)
	d.wantStep(2, 50, 4, 2)
}

// A server whose clock was ahead does not make a step hold for days.
func TestStepFromTheFutureHoldsNoLonger(t *testing.T) {
	d := newCanary(t, nil)
	d.orderAll(func(one *v1.Deployment) {
		one.Status.StepTime = timestamppb.New(d.now().Add(72 * time.Hour))
	})
	d.pass(11 * time.Minute)
	d.wantStep(2, 50, 4, 2)
}

// A replica of the last good revision that is lost is replaced by one of that revision: otherwise its share of the traffic
// would go to fewer and fewer.
func TestLostNodeDuringACanary(t *testing.T) {
	d := newCanary(t, nil)
	d.setNode(nodeNames[0], spec.NodeOffline)
	d.rest()
	serving := map[uint64]int{}
	for r := range d.snap().ReplicasOf(d.web().GetMetadata().GetUid()) {
		if spec.Serves(r) && r.GetSpec().GetNode() != nodeNames[0] && r.GetSpec().GetDesired() != spec.DesiredStopped {
			serving[r.GetSpec().GetRevision()]++
		}
	}
	if serving[1] != 4 || serving[2] != 1 {
		t.Fatalf("after the loss of a node %v serve", serving)
	}
	d.pass(11 * time.Minute)
	if status := d.deployment().GetStatus(); status.GetStep() != 2 || status.GetWeight() != 50 {
		t.Errorf("it is in step %d with %d%%", status.GetStep(), status.GetWeight())
	}
}

// A drained node gets both sets elsewhere.
func TestDrainDuringACanary(t *testing.T) {
	d := newCanary(t, nil)
	n := proto.CloneOf(d.snap().NodeByName(nodeNames[0]))
	n.Spec = &v1.NodeSpec{Availability: spec.AvailabilityDraining, Drain: &v1.Drain{StartTime: timestamppb.New(d.now())}}
	n.Status.State = spec.NodeDraining
	d.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
	d.rest()
	d.wantStep(1, 5, 4, 1)
	for r := range d.snap().ReplicasOn(n.GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) {
			t.Errorf("%s is still there", r.GetMetadata().GetName())
		}
	}
}

func TestScalingDuringACanary(t *testing.T) {
	d := newCanary(t, nil)
	d.pass(11 * time.Minute)
	d.resize(8)
	d.wantStep(2, 50, 8, 4)
	d.resize(2)
	d.wantStep(2, 50, 2, 1)
	d.resize(0)
	d.wantPhase(spec.DeploymentSucceeded)
}

// A release during a canary begins at its own first step. Nothing of the earlier one stays, and the last good revision keeps
// its replicas.
func TestReleaseDuringACanary(t *testing.T) {
	d := newCanary(t, nil)
	d.pass(11 * time.Minute)
	d.release()
	d.rest()
	if got := d.revisions(); got[1] != 4 || got[2] != 0 || got[3] != 1 {
		t.Errorf("there are %v", got)
	}
	d.wantKept()
	if status := d.deployment().GetStatus(); status.GetStep() != 1 || status.GetWeight() != 5 {
		t.Errorf("it is in step %d with %d%%", status.GetStep(), status.GetWeight())
	}
}

// A rollback to a revision that has had all the traffic goes without steps.
func TestUndoOfACanaryGoesWithoutSteps(t *testing.T) {
	d := newCanary(t, nil)
	d.pass(11 * time.Minute)
	d.pass(11 * time.Minute)
	d.wantPhase(spec.DeploymentSucceeded)
	d.edit("web", func(b *state.Batch, of *v1.Workload) {
		before := proto.CloneOf(of.GetStatus())
		spec.ReturnTo(of, d.snap().Revision(d.deployment().GetSpec().GetPreviousUid()))
		d.recordCause(b, before, of, spec.CauseRollback)
	})
	d.rest()
	d.wantPhase(spec.DeploymentSucceeded)
	if got := d.revisions(); got[1] != 4 || len(got) != 1 {
		t.Errorf("there are %v", got)
	}
}

// Another canary block concerns the next deployment.
func TestStepsThatChangeDuringACanary(t *testing.T) {
	d := newCanary(t, nil)
	d.edit("web", func(_ *state.Batch, of *v1.Workload) {
		of.Spec.Update.Canary = &v1.Canary{Steps: []string{"90%"}, Bake: "0s"}
	})
	d.rest()
	d.wantStep(1, 5, 4, 1)
	d.pass(11 * time.Minute)
	d.wantStep(2, 50, 4, 2)
}

// A deployment that is not a canary's, such as the first one of a workload, has no steps.
func TestFirstReleaseOfACanaryHasNoSteps(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyCanary})
	if got := d.revisions(); got[1] != 3 || d.deployment().GetStatus().GetStep() != 0 {
		t.Errorf("there are %v", got)
	}
}
