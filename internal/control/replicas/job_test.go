package replicas

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// addKind creates a workload of a kind.
func (w *world) addKind(name, kind, cpu string, change func(*v1.WorkloadSpec)) {
	w.t.Helper()
	made := newWorkload(w.newUID(), name, 1, cpu)
	made.Spec.Kind, made.Spec.Replicas, made.Spec.Restart = kind, nil, nil
	if change != nil {
		change(made.Spec)
	}
	made.Spec = spec.Normalized(made.Spec)
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
}

func (w *world) addJob(name string, completions, parallelism, retries int32) {
	w.t.Helper()
	w.addKind(name, spec.KindJob, "1", func(s *v1.WorkloadSpec) {
		s.Job = &v1.Job{Completions: proto.Int32(completions), Parallelism: proto.Int32(parallelism), Retries: proto.Int32(retries)}
	})
}

// end ends all running replicas of a workload.
func (w *world) end(name, phase string, at time.Time) {
	w.t.Helper()
	w.change(func(b *state.Batch) {
		for old := range w.snap().ReplicasOf(w.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
			if old.GetStatus().GetPhase() == spec.PhaseRunning {
				r := proto.CloneOf(old)
				r.Status.Phase, r.Status.EndTime = phase, timestamppb.New(at)
				b.Update(r, old.GetMetadata().GetVersion())
			}
		}
	})
}

// endOn ends all running replicas on a node.
func (w *world) endOn(node, phase string) {
	w.t.Helper()
	w.change(func(b *state.Batch) {
		for old := range w.snap().ReplicasOn(w.snap().NodeByName(node).GetMetadata().GetUid()) {
			if old.GetStatus().GetPhase() == spec.PhaseRunning {
				r := proto.CloneOf(old)
				r.Status.Phase, r.Status.EndTime = phase, timestamppb.New(w.now())
				b.Update(r, old.GetMetadata().GetVersion())
			}
		}
	})
}

func (w *world) outcome(name string) *v1.JobStatus {
	return w.snap().WorkloadByName("default", name).GetStatus().GetJob()
}

func TestJobRunsToCompletion(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "8")
	w.addJob("import", 3, 2, 3)
	w.settle()
	if got := w.phases("import"); got[spec.PhaseRunning] != 2 || len(got) != 1 {
		t.Fatalf("in the beginning: %v", got)
	}
	w.end("import", spec.PhaseCompleted, w.now())
	w.settle()
	if got := w.phases("import"); got[spec.PhaseRunning] != 1 || got[spec.PhaseCompleted] != 2 {
		t.Fatalf("after the first two: %v", got)
	}
	w.end("import", spec.PhaseCompleted, w.now())
	w.settle()
	if got := w.outcome("import"); got.GetOutcome() != spec.PhaseCompleted || got.GetSucceeded() != 3 || got.GetEndTime() == nil {
		t.Fatalf("in the end: %v", got)
	}
	// Nothing runs again, even after its replicas are deleted.
	w.change(func(b *state.Batch) {
		for r := range w.snap().Replicas("", "") {
			b.Delete(state.KindReplica, r.GetMetadata().GetUid())
		}
	})
	w.settle()
	if got := w.phases("import"); len(got) != 0 {
		t.Errorf("without its replicas: %v", got)
	}
	// A new revision does the work again.
	w.restart("import")
	w.settle()
	if got := w.phases("import"); got[spec.PhaseRunning] != 2 {
		t.Errorf("of a new revision: %v", got)
	}
	w.delete("import")
	w.settle()
	if w.snap().WorkloadByName("default", "import") != nil {
		t.Error("it is still there")
	}
}

// Failed replicas are replaced after growing pauses, without polling, until the retries are
// used up.
func TestJobPausesBetweenFailures(t *testing.T) {
	l := &log{world: newWorld(t)}
	err := runLoop(t, l, func() {
		l.do(func() { l.addNode("a", "8") })
		l.do(func() { l.addJob("import", 1, 1, 3) })
		fail := func() {
			l.do(func() { l.work() })
			l.do(func() { l.work() })
			l.do(func() { l.end("import", spec.PhaseFailed, time.Now()) })
		}
		live := func() int {
			return l.phases("import")[spec.PhasePlaced] + l.phases("import")[spec.PhaseRunning] + l.phases("import")[spec.PhasePreparing]
		}
		fail()
		synctest.Wait()
		if live() != 1 {
			t.Errorf("the first failure is not replaced at once: %v", l.phases("import"))
		}
		for _, pause := range []time.Duration{time.Second, 2 * time.Second} {
			fail()
			before := 0
			l.do(func() { before = l.proposals })
			time.Sleep(pause - time.Millisecond)
			synctest.Wait()
			after := 0
			l.do(func() { after = l.proposals })
			if live() != 0 || after != before {
				t.Errorf("before a pause of %s is over: %v", pause, l.phases("import"))
			}
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if live() != 1 {
				t.Errorf("after a pause of %s: %v", pause, l.phases("import"))
			}
		}
		fail()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := l.outcome("import"); got.GetOutcome() != spec.PhaseFailed || got.GetReason() != "4 of its replicas failed, and 3 may" || live() != 0 {
			t.Errorf("in the end: %v with %v", got, l.phases("import"))
		}
	})
	if err == nil {
		t.Error("the loop ended without an error")
	}
}

func TestJobHasADeadline(t *testing.T) {
	l := &log{world: newWorld(t)}
	_ = runLoop(t, l, func() {
		l.do(func() { l.addNode("a", "8") })
		l.do(func() {
			l.addKind("import", spec.KindJob, "1", func(s *v1.WorkloadSpec) { s.Job = &v1.Job{Deadline: "1h"} })
		})
		// The deadline counts from the revision, by the clock of the server that made it.
		began := l.snap().Revision(l.snap().WorkloadByName("default", "import").GetStatus().GetRevisionUid()).GetMetadata().GetCreateTime().AsTime()
		l.do(func() { l.work() })
		l.do(func() { l.work() })
		time.Sleep(time.Until(began.Add(time.Hour)) - time.Second)
		synctest.Wait()
		if got := l.outcome("import"); got.GetOutcome() != "" {
			t.Errorf("before it is over: %v", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := l.outcome("import"); got.GetOutcome() != spec.PhaseFailed || got.GetReason() != "its deadline is over" {
			t.Errorf("when it is over: %v", got)
		}
		l.do(func() { l.work() })
		l.do(func() { l.work() })
		if got := l.phases("import"); got[spec.PhaseStopped] != 1 {
			t.Errorf("what ran is %v", got)
		}
	})
}

func TestDaemonRunsOnEverySuitableNode(t *testing.T) {
	l := &log{world: newWorld(t)}
	_ = runLoop(t, l, func() {
		l.do(func() { l.addNode("a", "2") })
		l.do(func() { l.addKind("logs", spec.KindDaemon, "1", nil) })
		rest := func() {
			for range 6 {
				l.do(func() { l.work() })
			}
		}
		on := func() string {
			var names []string
			for n := range l.snap().Nodes("") {
				for r := range l.snap().ReplicasOn(n.GetMetadata().GetUid()) {
					if placement.Wanted(r) && r.GetSpec().GetWorkload() == "logs" {
						names = append(names, n.GetMetadata().GetName()+":"+r.GetStatus().GetPhase())
					}
				}
			}
			return strings.Join(names, " ")
		}
		expect := func(when, want string) {
			t.Helper()
			rest()
			if got := on(); got != want {
				t.Errorf("%s it is on %q, want %q", when, got, want)
			}
		}
		nodes := func(want int) {
			t.Helper()
			if got := (Placement{}).Nodes(l.snap(), l.snap().WorkloadByName("default", "logs")); got != want {
				t.Errorf("it should be on %d nodes, want %d", got, want)
			}
		}
		expect("in the beginning", "a:running")
		l.do(func() { l.addNode("b", "2") })
		expect("with another node", "a:running b:running")
		nodes(2)
		l.do(func() { l.setNode("a", "cordoned") })
		expect("with a cordoned one", "a:running b:running")
		nodes(2)
		l.do(func() { l.setNode("b", "offline") })
		expect("with one that is offline", "a:running b:running")
		l.do(func() { l.setNode("b", "ready") })
		l.do(func() { l.setNode("a", "ready") })

		// One node is full: its replica stays pending with that node's reason.
		l.do(func() { l.addNode("c", "500m") })
		expect("with one that is too small", "a:running b:running")
		nodes(3)
		waiting := ""
		for r := range l.snap().ReplicasOn("") {
			waiting = r.GetStatus().GetReason()
		}
		if want := "1 replica of logs cannot be placed: c: needs 1 CPU, 500m of 500m free"; waiting != want {
			t.Errorf("it waits because %q, want %q", waiting, want)
		}
		reasons := (Placement{}).Explain(l.snap(), l.snap().WorkloadByName("default", "logs").GetMetadata().GetUid())
		if len(reasons) != 1 || reasons[0].GetNode() != "c" || !strings.Contains(reasons[0].GetReason(), "needs 1 CPU") {
			t.Errorf("the reasons are %v", reasons)
		}
		if got := (Placement{}).Pending(l.snap()); got["fit"] != 1 {
			t.Errorf("pending are %v", got)
		}
		l.do(func() {
			n := proto.CloneOf(l.snap().NodeByName("c"))
			n.Status.Capacity.Cpu = "4"
			l.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
		})
		expect("when it has grown", "a:running b:running c:running")

		// A new revision rolls from node to node. A label decides which nodes run it.
		l.do(func() {
			l.edit("logs", func(b *state.Batch, of *v1.Workload) {
				of.Spec.Placement = &v1.Placement{Require: []*v1.LabelRule{{Key: "name", Operator: "in", Values: []string{"a", "b"}}}}
				l.revise(b, of)
			})
		})
		for range 4 {
			rest()
		}
		expect("with a rule", "a:running b:running")
		for r := range l.snap().Replicas("", "") {
			if placement.Wanted(r) && r.GetSpec().GetRevision() != 2 {
				t.Errorf("%s is of revision %d", r.GetMetadata().GetName(), r.GetSpec().GetRevision())
			}
		}
		l.do(func() {
			n := proto.CloneOf(l.snap().NodeByName("b"))
			n.Metadata.Labels = map[string]string{"name": "z"}
			l.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
		})
		expect("when a label has changed", "a:running")
		l.do(func() { l.delete("logs") })
		rest()
		if l.snap().WorkloadByName("default", "logs") != nil {
			t.Error("it is still there")
		}
	})
}

// A plan shows where the replicas of jobs and daemons go, and that comes true.
func TestForecastOfJobsAndDaemons(t *testing.T) {
	for _, c := range []struct {
		kind, want string
		unplaced   int32
		change     func(*v1.WorkloadSpec)
	}{
		{spec.KindJob, "create a, create b", 0, func(s *v1.WorkloadSpec) {
			s.Job = &v1.Job{Completions: proto.Int32(10), Parallelism: proto.Int32(2)}
		}},
		{spec.KindDaemon, "create a, create b", 1, nil},
		{spec.KindCron, "", 0, func(s *v1.WorkloadSpec) { s.Cron = &v1.Cron{Schedule: "@daily"} }},
	} {
		w := newWorld(t)
		w.addNode("a", "4")
		w.addNode("b", "4")
		w.addNode("small", "100m")
		made := newWorkload(w.newUID(), "work", 1, "1")
		made.Spec.Kind, made.Spec.Replicas, made.Spec.Restart = c.kind, nil, nil
		if c.change != nil {
			c.change(made.Spec)
		}
		made.Spec = spec.Normalized(made.Spec)
		var b state.Batch
		w.revise(&b, made)
		b.Create(made)
		planned, _, err := Placement{}.Forecast(w.now(), w.store.Fork(), b.Transaction(w.now()), []string{made.GetMetadata().GetUid()})
		if err != nil {
			t.Fatal(err)
		}
		var steps []string
		for _, s := range planned[0].GetReplicas() {
			steps = append(steps, s.GetAction()+" "+s.GetToNode())
		}
		if got := strings.Join(steps, ", "); got != c.want || planned[0].GetUnplaced() != c.unplaced {
			t.Errorf("%s: %s, %d unplaced for %v", c.kind, got, planned[0].GetUnplaced(), planned[0].GetUnplacedReasons())
		}
	}
}
