package replicas

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// out is a taint that was set at a time; the zero time means unknown.
func out(at time.Time) *v1.Taint {
	t := &v1.Taint{Key: "out", Value: "disk", Effect: scheduler.NoExecute}
	if !at.IsZero() {
		t.Time = timestamppb.New(at)
	}
	return t
}

// addTolerant creates a workload that tolerates the taint for some seconds, or forever if
// 0.
func (w *world) addTolerant(name string, replicas int32, cpu, policy string, seconds int64) {
	w.t.Helper()
	made := newWorkload(w.newUID(), name, replicas, cpu)
	made.Spec.Placement = &v1.Placement{Tolerations: []*v1.Toleration{{Key: "out", Effect: scheduler.NoExecute, Seconds: seconds}}}
	made.Spec.Restart.Policy = policy
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
}

// running lets nodes work until they are idle, while the loop runs.
func (l *log) running() {
	for range 20 {
		l.do(func() { l.work() })
	}
}

// tried is how many proposals there were.
func (l *log) tried() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.proposals
}

func TestIntolerantReplicasLeaveAtOnce(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 2, "1")
	w.addTolerant("agent", 1, "1", "always", 0)
	d := drive(w)
	d.rest()
	d.addNode("b", "4")
	d.taint("a", out(time.Now()))
	d.react()
	if d.going() != 2 {
		t.Errorf("%d replicas are stopping", d.going())
	}
	for _, r := range d.of("web") {
		if want := "node a has the taint out=disk:NoExecute, which it does not tolerate"; r.GetSpec().GetNode() == "a" && r.GetStatus().GetReason() != want {
			t.Errorf("it goes because %q", r.GetStatus().GetReason())
		}
	}
	if got := d.messagesOf("Evicted"); len(got) != 2 {
		t.Errorf("events tell %q", got)
	}
	d.rest()
	d.wantWhere("web", "b running", "b running")
	d.wantWhere("agent", "a running")
}

// The loop wakes when a toleration expires, without polling, and a service keeps serving if
// there is room for replacements.
func TestTolerationExpires(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "4")
	l.addTolerant("web", 3, "1", "always", 30)
	_ = runLoop(t, l, func() {
		l.running()
		l.do(func() { l.addNode("b", "4") })
		set := time.Now()
		l.do(func() { l.taint("a", out(set)) })
		before := l.tried()
		time.Sleep(30*time.Second - 1)
		l.do(func() {})
		if l.tried() != before || l.going() != 0 {
			t.Fatalf("before the time is over there are %d proposals", l.tried()-before)
		}
		time.Sleep(2 * time.Nanosecond)
		for range 20 {
			l.do(func() { l.work() })
			if got := l.phases("web")[spec.PhaseRunning]; got < 3 {
				t.Fatalf("only %d serve", got)
			}
		}
		l.wantWhere("web", "b running", "b running", "b running")
		if got := l.messagesOf("Evicted"); len(got) != 3 || !strings.Contains(got[0], "tolerated for long enough") {
			t.Errorf("events tell %q", got)
		}
		before = l.tried()
		time.Sleep(time.Hour)
		l.do(func() {})
		if l.tried() != before {
			t.Error("the loop proposes though nothing happens")
		}
	})
}

// A daemon's toleration expires, too. Then the node has no replica until the taint is gone.
func TestDaemonTolerationExpires(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "4")
	l.addNode("b", "4")
	l.addKind("logs", spec.KindDaemon, "1", func(s *v1.WorkloadSpec) {
		s.Placement = &v1.Placement{Tolerations: []*v1.Toleration{{Key: "out", Effect: scheduler.NoExecute, Seconds: 30}}}
	})
	_ = runLoop(t, l, func() {
		l.running()
		l.do(func() { l.taint("a", out(time.Now())) })
		l.running()
		l.wantWhere("logs", "a running", "b running")
		time.Sleep(30 * time.Second)
		l.running()
		l.wantWhere("logs", "b running")
		l.do(func() { l.taint("a") })
		l.running()
		l.wantWhere("logs", "a running", "b running")
	})
}

func TestTaintRemovedInTimeEvictsNothing(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "4")
	l.addTolerant("web", 2, "1", "always", 30)
	_ = runLoop(t, l, func() {
		l.running()
		set := time.Now()
		l.do(func() { l.taint("a", out(set)) })
		time.Sleep(29 * time.Second)
		l.do(func() { l.taint("a") })
		time.Sleep(time.Hour)
		l.do(func() {})
		l.wantWhere("web", "a running", "a running")
	})
}

// A replica that cannot be covered leaves all the same.
func TestUncoverableReplicaLeavesOnExpiry(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addTolerant("web", 3, "1", "always", 30)
	d := drive(w)
	d.rest()
	d.addNode("b", "1")
	d.taint("a", out(time.Time{})) // the start is unknown
	d.rest()
	d.wantWhere("web", " pending", " pending", "b running")
	d.taint("a")
	d.rest()
	d.wantWhere("web", "a running", "a running", "b running")
}

// A replica that has to stay on a draining node keeps no other one from leaving a node with a taint.
func TestTolerationExpiresDuringADrain(t *testing.T) {
	for _, nodes := range [][2]string{{"a", "b"}, {"b", "a"}} {
		draining, tainted := nodes[0], nodes[1]
		w := newWorld(t)
		w.addNode("a", "1")
		w.addNode("b", "1")
		w.addTolerant("web", 2, "1", "always", 30)
		w.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = 2 })
		d := drive(w)
		d.rest()
		d.drain(draining, &v1.Drain{})
		d.rest()
		d.wantWhere("web", "a running", "b running")
		d.taint(tainted, out(time.Time{}))
		d.rest()
		d.wantWhere("web", " pending", draining+" running")
	}
}

// Replicas without traffic make up for none whose toleration expires, and must not keep it on its node.
func TestTolerationExpiresBesideAnIdleSet(t *testing.T) {
	d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, KeepOld: "0s"})
	revise := func(cpu string) {
		d.edit("web", func(_ *state.Batch, of *v1.Workload) {
			of.Spec.Placement = &v1.Placement{Tolerations: []*v1.Toleration{{Key: "out", Effect: scheduler.NoExecute, Seconds: 30}}}
			of.Spec.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Cpu: cpu}}
			of.Spec.Update.ProgressDeadline = "1m"
		})
		d.release()
		d.rest()
	}
	revise("5")
	d.wantPhase(spec.DeploymentSucceeded)
	old := d.web().GetStatus().GetRevision()
	d.taint("n3", out(d.now()))
	revise("3") // fits beside the old one on n1 and n2, but not on n3
	d.wantPhase(spec.DeploymentRunning)
	if got := d.revisions(); got[old] != 3 || got[old+1] != 2 {
		t.Fatalf("before the toleration expires there are %v", got)
	}
	d.ahead = 40 * time.Second
	d.rest()
	if got := d.revisions(); got[old] != 2 || got[old+1] != 2 || d.hasReplicas("n3") {
		t.Errorf("after that there are %v", got)
	}
	d.ahead = 5 * time.Minute
	d.rest()
	d.wantPhase(spec.DeploymentRolledBack)
	d.taint("n3")
	d.rest()
	if got := d.revisions(); got[old] != 3 || got[old+1] != 0 {
		t.Errorf("when the taint is gone there are %v", got)
	}
}

// Work that must be done once is not done twice at the same time.
func TestJobIsStoppedBeforeItRunsElsewhere(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addTolerant("job", 1, "1", "on-failure", 30)
	d := drive(w)
	d.rest()
	d.addNode("b", "4")
	d.taint("a", out(time.Time{}))
	d.react()
	if d.going() != 1 {
		t.Fatalf("%d replicas are stopping", d.going())
	}
	d.rest()
	d.wantWhere("job", "b running")
}
