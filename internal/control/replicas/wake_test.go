package replicas

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Every change that could help a waiting workload wakes it, and nothing else does: each of
// these changes is the only one that lets it fit.
func TestBlockedWorkloadWakesWhenSomethingHelps(t *testing.T) {
	needs := func(change func(*v1.WorkloadSpec)) *v1.WorkloadSpec {
		s := newWorkload("", "", 1, "1").GetSpec()
		change(s)
		return s
	}
	plain := needs(func(*v1.WorkloadSpec) {})
	for what, c := range map[string]struct {
		prepare func(*world)
		spec    *v1.WorkloadSpec
		help    func(*world)
	}{
		"a taint is taken away": {
			func(w *world) { w.taint("a", &v1.Taint{Key: "out", Effect: scheduler.NoSchedule}) }, plain,
			func(w *world) { w.taint("a") },
		},
		"a label is set": {
			func(*world) {}, needs(func(s *v1.WorkloadSpec) { s.Placement = &v1.Placement{Labels: map[string]string{"disk": "ssd"}} }),
			func(w *world) { w.editNode("a", func(n *v1.Node) { n.Metadata.Labels["disk"] = "ssd" }) },
		},
		"a node grows": {
			func(*world) {}, needs(func(s *v1.WorkloadSpec) { s.Resources.Requests.Cpu = "6" }),
			func(w *world) { w.editNode("a", func(n *v1.Node) { n.Status.Capacity.Cpu = "8" }) },
		},
		"a node is put back": {
			func(w *world) { w.setNode("a", "cordoned") }, plain,
			func(w *world) { w.setNode("a", "ready") },
		},
		"a pressure ends": {
			func(w *world) {
				w.editNode("a", func(n *v1.Node) { n.Status.Conditions = []*v1.Condition{{Type: "DiskPressure", Status: true}} })
			}, plain,
			func(w *world) { w.editNode("a", func(n *v1.Node) { n.Status.Conditions = nil }) },
		},
		"a driver comes": {
			func(w *world) { w.editNode("a", func(n *v1.Node) { n.Status.Drivers = nil }) }, plain,
			func(w *world) {
				w.editNode("a", func(n *v1.Node) { n.Status.Drivers = []*v1.DriverInfo{{Name: "container"}} })
			},
		},
		"a replica ends": {
			func(w *world) { w.addWorkload("full", 4, "1") }, plain,
			func(w *world) { w.scale("full", 3) },
		},
		"less is kept for the system": {
			func(w *world) {
				w.change(func(b *state.Batch) {
					b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: w.newUID(), Name: "cluster"}, Spec: &v1.ClusterSpec{Reserved: &v1.ResourceAmounts{Cpu: "4"}}})
				})
			}, plain,
			func(w *world) {
				c := proto.CloneOf(w.snap().Cluster())
				c.Spec.Reserved = nil
				w.change(func(b *state.Batch) { b.Update(c, c.GetMetadata().GetVersion()) })
			},
		},
		"one that may be preempted starts to run enough": {
			func(w *world) {
				w.addRanked("full", 4, "1", 200, 3)
				w.setNode("a", "cordoned") // so that they only start
				w.setNode("a", "ready")
			}, needs(func(s *v1.WorkloadSpec) { s.Priority = proto.Int32(300) }),
			func(*world) {},
		},
	} {
		t.Run(what, func(t *testing.T) {
			l := &log{world: newWorld(t)}
			l.addNode("a", "4")
			c.prepare(l.world)
			_ = runLoop(t, l, func() {
				l.do(func() {
					made := newWorkload(l.newUID(), "web", 1, "1")
					made.Spec = proto.CloneOf(c.spec)
					l.change(func(b *state.Batch) { l.revise(b, made); b.Create(made) })
				})
				if got := l.phases("web"); got[spec.PhasePending] != 1 {
					t.Fatalf("at first it is %v", got)
				}
				before := l.tried()
				time.Sleep(time.Hour)
				l.do(func() { // none of this helps
					l.editNode("a", func(n *v1.Node) { n.Status.Reliability = &v1.Reliability{Score: 50} })
				})
				if l.tried() != before {
					t.Error("the loop proposes though nothing helps")
				}
				l.do(func() { c.help(l.world) })
				l.running()
				if got := l.phases("web"); got[spec.PhaseRunning] != 1 {
					t.Errorf("in the end it is %v", got)
				}
			})
		})
	}
}

// A successor that fits nowhere waits for a taint to go, too.
func TestOutdatedReplicaIsReplacedWhenATaintGoes(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "4")
	l.addWorkload("web", 1, "1")
	_ = runLoop(t, l, func() {
		l.running()
		l.do(func() { l.taint("a", &v1.Taint{Key: "out", Effect: scheduler.NoSchedule}) })
		l.do(func() { l.restart("web") })
		l.running()
		if got := l.of("web"); len(got) != 1 || got[0].GetSpec().GetRevision() != 1 {
			t.Fatalf("with the taint there are %v", got)
		}
		l.do(func() { l.taint("a") })
		l.running()
		if got := l.of("web"); len(got) != 2 || got[1].GetSpec().GetRevision() != 2 {
			t.Errorf("without it there are %v", got)
		}
	})
}
