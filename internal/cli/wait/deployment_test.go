package wait

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/spec"
)

var changed = time.Unix(1000, 0)

// deploying tracks a workload that was updated. All its replicas run, except that one is outdated.
func deploying(outdated int32) *tracker {
	web := &cloudlessv1.Workload{
		Metadata: &cloudlessv1.Metadata{Name: "web", Uid: "w", Version: 5, UpdateTime: timestamppb.New(changed)},
		Spec:     &cloudlessv1.WorkloadSpec{Replicas: new(int32(1))},
		Status:   &cloudlessv1.WorkloadStatus{Phase: "running", Desired: 1, Running: 1, Outdated: outdated, DeploymentUid: "d", RevisionUid: "r2"},
	}
	t := newTracker(&tracked{action: spec.ActionUpdate, asked: web})
	t.update("", client.Update{Synced: true})
	t.update("", client.Update{Workload: web})
	return t
}

func (t *tracker) deployment(status *cloudlessv1.DeploymentStatus, spec *cloudlessv1.DeploymentSpec) {
	if spec == nil {
		spec = &cloudlessv1.DeploymentSpec{}
	}
	spec.Workload = "web"
	t.update("", client.Update{Deployment: &cloudlessv1.Deployment{Metadata: &cloudlessv1.Metadata{Uid: "d"}, Spec: spec, Status: status}})
}

// The deployment decides, whatever the number of running replicas is.
func TestDeploymentDecidesWhenAChangeIsDone(t *testing.T) {
	running := &cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning}
	s := deploying(0)
	s.deployment(running, nil)
	if got := s.judge(); got.done || got.stuck != nil {
		t.Errorf("while it runs, the verdict is %+v", got)
	}
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentSucceeded}, nil)
	if got := s.judge(); !got.done {
		t.Errorf("after it succeeded, the verdict is %+v", got)
	}
	for _, phase := range []string{spec.DeploymentFailed, spec.DeploymentRolledBack} {
		s := deploying(0)
		s.deployment(running, nil)
		s.deployment(&cloudlessv1.DeploymentStatus{Phase: phase}, nil)
		if got := s.judge(); got.ended != s.workloads[0] {
			t.Errorf("%s: the verdict is %+v", phase, got)
		}
	}
}

// A change that deploys nothing, such as another label, must not fail because of an earlier deployment.
func TestEarlierDeploymentSaysNothing(t *testing.T) {
	s := deploying(0)
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentFailed, EndTime: timestamppb.New(changed.Add(-time.Second))}, nil)
	if got := s.judge(); !got.done {
		t.Errorf("the verdict is %+v", got)
	}
	s = deploying(0)
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentFailed, EndTime: timestamppb.New(changed.Add(time.Second))}, nil)
	if got := s.judge(); got.ended == nil {
		t.Errorf("after a deployment that was short, the verdict is %+v", got)
	}
}

// Applying the same file again changes nothing, and still ends with the deployment that is under way.
func TestOpenDeploymentIsFollowedWithoutAChange(t *testing.T) {
	unchanged := func() *tracker {
		s := deploying(0)
		s.workloads[0].action = spec.ActionUnchanged
		return s
	}
	rolledBack := &cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRolledBack, EndTime: timestamppb.New(changed.Add(time.Second))}

	s := unchanged()
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning}, nil)
	if got := s.judge(); got.done || got.stuck != nil {
		t.Errorf("while it runs, the verdict is %+v", got)
	}
	s.deployment(rolledBack, nil)
	if got := s.judge(); got.ended != s.workloads[0] {
		t.Errorf("after it was rolled back, the verdict is %+v", got)
	}
	s = unchanged()
	s.deployment(rolledBack, &cloudlessv1.DeploymentSpec{RevisionUid: "r2"})
	if got := s.judge(); got.ended != s.workloads[0] {
		t.Errorf("after it was rolled back before the first look, the verdict is %+v", got)
	}
	s = unchanged()
	s.deployment(rolledBack, &cloudlessv1.DeploymentSpec{RevisionUid: "r1"})
	if got := s.judge(); !got.done {
		t.Errorf("after it was rolled back before the request, the verdict is %+v", got)
	}
	s = deploying(1)
	s.workloads[0].action = spec.ActionUnchanged
	s.workloads[0].now.Spec.Update = &cloudlessv1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true}
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning, Desired: 2, Serving: 2}, &cloudlessv1.DeploymentSpec{PreviousUid: "r1"})
	if got := s.judge(); !got.done {
		t.Errorf("while it awaits its promotion, the verdict is %+v", got)
	}
}

// After the switch, the old replicas of a blue-green deployment only wait for their end.
func TestSwitchedDeploymentIsDone(t *testing.T) {
	s := deploying(1)
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning}, nil)
	if got := s.judge(); got.done {
		t.Error("it is done before the switch")
	}
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning, Switched: true}, nil)
	if got := s.judge(); !got.done {
		t.Errorf("after the switch, the verdict is %+v", got)
	}
}

func TestDeploymentThatAwaitsPromotionIsDone(t *testing.T) {
	s := deploying(1)
	s.workloads[0].now.Spec.Update = &cloudlessv1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true}
	for _, test := range []struct {
		serving  int32
		promoted bool
		want     bool
	}{{1, false, false}, {2, false, true}, {2, true, false}} {
		s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning, Desired: 2, Serving: test.serving}, &cloudlessv1.DeploymentSpec{Promoted: test.promoted, PreviousUid: "r1"})
		if got := s.judge(); got.done != test.want {
			t.Errorf("%+v: the verdict is %+v", test, got)
		}
	}
}

// The cluster itself rolls back a deployment that does not work, so a broken replica is not the end.
func TestRollbackIsAwaited(t *testing.T) {
	for previous, broken := range map[string]bool{"r1": false, "": true} {
		s := deploying(0)
		s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning}, &cloudlessv1.DeploymentSpec{PreviousUid: previous})
		r := webReplica(spec.PhaseBackoff)
		r.Spec.RevisionUid, r.Status.Restarts = "r2", 5
		s.update("", client.Update{Replica: r})
		if got := s.judge(); (got.broken != nil) != broken {
			t.Errorf("with the last good revision %q, the verdict is %+v", previous, got)
		}
	}
}

// An old replica may make room for a new one, unless the new one waits for long.
func TestDeploymentWithoutRoomIsStuckAfterAWhile(t *testing.T) {
	s := deploying(1)
	s.deployment(&cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning}, nil)
	r := webReplica(spec.PhasePending)
	r.Spec.Node = ""
	s.update("", client.Update{Replica: r})
	if got := s.judge(); got.stuck != nil {
		t.Errorf("at once, the verdict is %+v", got)
	}
	s.watched += roomFor
	if got := s.judge(); got.stuck == nil {
		t.Errorf("after a while, the verdict is %+v", got)
	}
}

// The reason of a deployment names the replica that crashes and how it ended. Its error does not say so again.
func TestErrorSaysOnceHowAReplicaEnded(t *testing.T) {
	r := webReplica(spec.PhaseBackoff)
	r.Metadata.Name, r.Spec.Node, r.Status.Reason = "web-1", "n1", "It exited with code 3."
	for _, test := range []struct{ reason, line, want string }{
		{"web-1 ended 3 times: It exited with code 3.", "no route", ` (its last line is "no route")`},
		{"web-1 ended 3 times: It exited with code 3.", "", ""},
		{"no progress for 5m", "no route", ` (replica web-1 on n1: it exited with code 3, its last line is "no route")`},
	} {
		if got := aboutCulprit(test.reason, r, test.line); got != test.want {
			t.Errorf("after %q it adds %q, want %q", test.reason, got, test.want)
		}
	}
}

// The tree says of each replica whether it is ready and gets traffic.
func TestTreeShowsWhoGetsTraffic(t *testing.T) {
	for _, test := range []struct {
		revision, strategy, want string
		switched, stopping       bool
		unready                  string
		settling                 bool
	}{
		{revision: "r1", strategy: spec.StrategyRolling, want: "ready, gets traffic"},
		{revision: "r2", strategy: spec.StrategyRolling, want: "ready, gets traffic"},
		{revision: "r2", strategy: spec.StrategyRolling, settling: true, want: "ready, gets no traffic before it has served for a while"},
		{revision: "r1", strategy: spec.StrategyRolling, stopping: true, want: "ready, gets no new connections"},
		{revision: "r2", strategy: spec.StrategyRolling, unready: "It does not listen on port 80 yet.", want: "It does not listen on port 80 yet."},
		{revision: "r2", strategy: spec.StrategyBlueGreen, want: "ready, gets no traffic before the switch"},
		{revision: "r1", strategy: spec.StrategyBlueGreen, want: "ready, gets traffic"},
		{revision: "r1", strategy: spec.StrategyBlueGreen, switched: true, want: "ready, gets no traffic since the switch"},
		{revision: "r2", strategy: spec.StrategyBlueGreen, switched: true, want: "ready, gets traffic"},
	} {
		r := webReplica(spec.PhaseRunning)
		r.Spec.RevisionUid, r.Status.Unready, r.Status.Settling = test.revision, test.unready, test.settling
		if test.stopping {
			r.Spec.Desired = spec.DesiredStopped
		}
		w := &tracked{
			now:      &cloudlessv1.Workload{Spec: &cloudlessv1.WorkloadSpec{Ports: []*cloudlessv1.Port{{Port: 80}}}},
			replicas: map[string]*cloudlessv1.Replica{"r": r},
			deployment: &cloudlessv1.Deployment{
				Spec:   &cloudlessv1.DeploymentSpec{RevisionUid: "r2", PreviousUid: "r1", Strategy: test.strategy},
				Status: &cloudlessv1.DeploymentStatus{Phase: spec.DeploymentRunning, Switched: test.switched},
			},
		}
		if got := w.standing(r); got != test.want {
			t.Errorf("%+v: it shows %q", test, got)
		}
	}
}
