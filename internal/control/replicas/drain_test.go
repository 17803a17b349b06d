package replicas

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// drain drains a node.
func (w *world) drain(name string, drain *v1.Drain) {
	w.t.Helper()
	n := proto.CloneOf(w.snap().NodeByName(name))
	n.Spec = &v1.NodeSpec{Availability: spec.AvailabilityDraining, Drain: drain}
	n.Status.State = spec.NodeDraining
	w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
}

// servingOf counts the replicas of a workload that serve and should go on.
func servingOf(snap *state.Snapshot, workloadUID string) (n int) {
	for r := range snap.ReplicasOf(workloadUID) {
		if placement.Wanted(r) && spec.Serves(r) && !placement.Away(snap, r) {
			n++
		}
	}
	return n
}

// restServing lets loop and nodes take turns, and fails if fewer than some replicas serve.
func (d *driven) restServing(name string, least int) {
	d.t.Helper()
	uid := d.snap().WorkloadByName("default", name).GetMetadata().GetUid()
	for range 1000 {
		d.react()
		if got := servingOf(d.snap(), uid); got < least {
			d.t.Fatalf("only %d replicas of %s serve, want %d", got, name, least)
		}
		if !d.work() {
			return
		}
	}
	d.t.Fatalf("the world never settles")
}

// drainable is a world with a service on node a, and an empty node b.
func drainable(t *testing.T, replicas, keep int32, roomOnB string) *driven {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("web", replicas, "1", 100, keep)
	d := driveFinitely(w)
	d.rest()
	d.addNode("b", roomOnB)
	return d
}

func TestDrainedReplicasLeaveWhenTheirReplacementsServe(t *testing.T) {
	d := drainable(t, 3, 0, "4")
	d.drain("a", &v1.Drain{StartTime: timestamppb.New(time.Now()), Replicas: 3, Grace: "7s"})
	d.restServing("web", 3)
	d.wantWhere("web", "b running", "b running", "b running")
	d.wantAtRest()
	for _, r := range d.of("web") {
		if r.GetSpec().GetNode() == "a" && (r.GetSpec().GetStopGrace() != "7s" || r.GetStatus().GetReason() != "node a is being drained") {
			t.Errorf("it has grace %q and leaves because %q", r.GetSpec().GetStopGrace(), r.GetStatus().GetReason())
		}
	}
	if got := d.messagesOf("Drained"); len(got) != 4 || !strings.HasPrefix(got[0], "it is empty: 3 replicas left it in ") {
		t.Errorf("events tell %q", got)
	}
	if d.snap().NodeByName("a").GetSpec().GetDrain().GetEndTime() == nil {
		t.Error("the node is not marked as drained")
	}
}

// Without room elsewhere, as many replicas stay as minAvailable says. By default one may go.
func TestDrainKeepsMinAvailable(t *testing.T) {
	for _, c := range []struct{ replicas, keep, stay int32 }{{3, 0, 2}, {3, 2, 2}, {3, 3, 3}, {3, 1, 1}, {1, 0, 0}, {1, 1, 1}} {
		t.Run(fmt.Sprintf("minAvailable %d of %d", c.keep, c.replicas), func(t *testing.T) {
			d := drainable(t, c.replicas, c.keep, "100m")
			d.drain("a", &v1.Drain{})
			d.restServing("web", int(c.stay))
			if got := int32(d.phases("web")[spec.PhaseRunning]); got != c.stay {
				t.Errorf("%d stay, want %d", got, c.stay)
			}
			d.wantAtRest()

			d.addNode("c", "4") // room
			d.restServing("web", int(c.stay))
			if got := d.phases("web")[spec.PhaseRunning]; got != int(c.replicas) || d.hasReplicas("a") {
				t.Errorf("%d run, on %q", got, d.where("web"))
			}
		})
	}
}

// While a blue-green release waits for its promotion, a draining node loses a replica with traffic only if its service
// can do without it: the new set makes up for none.
func TestDrainBeforeAPromotion(t *testing.T) {
	for keep, stay := range map[int32]int{0: 2, 2: 2, 3: 3} {
		d := newDeploying(t, &v1.Update{Strategy: spec.StrategyBlueGreen, ManualSwitch: true})
		d.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = keep })
		d.release()
		d.rest()
		node := slices.Collect(d.snap().ReplicasOf(d.web().GetMetadata().GetUid()))[0].GetSpec().GetNode()
		d.drain(node, &v1.Drain{})
		d.rest()
		if got := d.revisions(); got[1] != stay || got[2] != 3 {
			t.Errorf("with a minAvailable of %d, there are %v", keep, got)
		}
		d.order(func(s *v1.DeploymentSpec) { s.Promoted = true })
		d.rest()
		if got := d.revisions(); got[2] != 3 || d.hasReplicas(node) {
			t.Errorf("after the promotion, there are %v, and the node has replicas: %t", got, d.hasReplicas(node))
		}
	}
}

// A drain can wait, and a taint cannot.
func TestTaintEvictsFromADrainingNode(t *testing.T) {
	d := drainable(t, 3, 3, "100m")
	d.drain("a", &v1.Drain{})
	d.restServing("web", 3)
	d.taint("a", out(time.Time{}))
	d.rest()
	if d.hasReplicas("a") {
		t.Errorf("replicas are still on %q", d.where("web"))
	}
}

func (w *world) hasReplicas(node string) bool {
	for r := range w.snap().ReplicasOn(w.snap().NodeByName(node).GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) {
			return true
		}
	}
	return false
}

func TestForcedDrainEmptiesTheNode(t *testing.T) {
	d := drainable(t, 3, 3, "1")
	d.drain("a", &v1.Drain{})
	d.rest()
	if !d.hasReplicas("a") {
		t.Fatal("it is empty without force")
	}
	d.drain("a", &v1.Drain{Force: true})
	d.rest()
	d.wantWhere("web", " pending", " pending", "b running")
}

func TestUncordonedNodeKeepsItsReplicas(t *testing.T) {
	d := drainable(t, 2, 0, "4")
	d.drain("a", &v1.Drain{})
	d.react() // covers are placed, and nothing has left
	d.setNode("a", "ready")
	d.rest()
	d.wantWhere("web", "a running", "a running")
}

// A workload that recreates its replicas never has one too many.
func TestDrainStopsRecreatedReplicasFirst(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("db", 2, "1")
	w.edit("db", func(_ *state.Batch, of *v1.Workload) { of.Spec.Update = &v1.Update{Strategy: spec.StrategyRecreate} })
	d := driveFinitely(w)
	d.rest()
	d.addNode("b", "4")
	d.drain("a", &v1.Drain{})
	for range 100 {
		d.react()
		if live := len(d.where("db")); live > 2 {
			t.Fatalf("%d replicas are there at a time", live)
		}
		if serving := servingOf(d.snap(), d.of("db")[0].GetSpec().GetWorkloadUid()); serving < 1 {
			t.Fatal("both are stopped at the same time")
		}
		if !d.work() {
			break
		}
	}
	d.wantWhere("db", "b running", "b running")
}

// Jobs finish until the deadline, and daemons leave last.
func TestDrainLetsJobsFinishAndStopsDaemonsLast(t *testing.T) {
	l := &log{world: newWorld(t)}
	l.addNode("a", "4")
	l.addKind("logs", spec.KindDaemon, "100m", nil)
	l.addJob("work", 1, 1, 0)
	_ = runLoop(t, l, func() {
		l.running()
		l.do(func() { l.addNode("b", "4") })
		l.do(func() { l.drain("a", &v1.Drain{Deadline: timestamppb.New(time.Now().Add(time.Minute))}) })
		l.running()
		l.wantWhere("work", "a running")
		l.wantWhere("logs", "a running", "b running")
		time.Sleep(time.Minute)
		l.running()
		l.wantWhere("work", "b running")
		l.wantWhere("logs", "b running")
		if l.snap().NodeByName("a").GetSpec().GetDrain().GetEndTime() == nil {
			t.Error("the node is not marked as drained")
		}
		l.do(func() { l.setNode("a", "ready") })
		l.running()
		l.wantWhere("logs", "a running", "b running")
	})
}

// A machine that is about to leave loses only replicas of which replacements serve. The others
// run until it is gone.
func TestDepartingMachineKeepsWhatHasNoReplacement(t *testing.T) {
	d := drainable(t, 3, 0, "3")
	d.addKind("logs", spec.KindDaemon, "100m", nil)
	d.addJob("work", 1, 1, 0)
	d.rest()
	d.setNode("a", spec.NodeDraining) // without an operator
	d.restServing("web", 3)
	if got := d.where("web"); slices.Contains(got, " pending") || !slices.Contains(got, "a running") || !slices.Contains(got, "b running") {
		t.Errorf("web is on %q", got)
	}
	d.wantAtRest()
}

// Rollouts, drains and preemptions that coincide never take a service below its minAvailable.
func TestMinAvailableHoldsAgainstEverythingAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for i, name := range nodeNames {
			w.addNode(name, fmt.Sprint(2+2*i))
		}
		for _, name := range workloadNames {
			replicas := rapid.Int32Range(1, 5).Draw(t, "replicas")
			w.addRanked(name, replicas, rapid.SampledFrom([]string{"500m", "1", "2"}).Draw(t, "cpu"),
				rapid.SampledFrom([]int32{101, 200, 300, 400}).Draw(t, "priority"), rapid.Int32Range(1, replicas).Draw(t, "keep"))
		}
		d := driveFinitely(w)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			name, node := rapid.SampledFrom(workloadNames).Draw(t, "workload"), rapid.SampledFrom(nodeNames).Draw(t, "node")
			switch rapid.SampledFrom([]string{"restart", "drain", "ready", "priority", "work", "work", "work"}).Draw(t, "what") {
			case "restart":
				d.restart(name)
			case "drain":
				d.drain(node, &v1.Drain{})
			case "ready":
				d.setNode(node, "ready")
			case "priority":
				d.edit(name, func(_ *state.Batch, of *v1.Workload) {
					of.Spec.Priority = proto.Int32(rapid.SampledFrom([]int32{101, 250, 500}).Draw(t, "priority"))
				})
			case "work":
				d.work()
			}
			d.reactKeeping()
		}
	})
}

// reactKeeping lets the loop react, and checks that it leaves as many serving replicas of each
// service as its minAvailable says, or all if there are fewer.
func (d *driven) reactKeeping() {
	d.t.Helper()
	before := d.snap()
	d.react()
	for of := range d.snap().Workloads("", "") {
		uid := of.GetMetadata().GetUid()
		was, is, keep := servingOf(before, uid), servingOf(d.snap(), uid), int(of.GetSpec().GetMinAvailable())
		if is < was && is < keep {
			d.t.Fatalf("%s has %d serving replicas of %d, but %d are to stay", of.GetMetadata().GetName(), is, was, keep)
		}
	}
}

// A restart replaces every replica, and as many serve as before all the time.
func TestRestartIsRolling(t *testing.T) {
	d := drainable(t, 3, 0, "4")
	before := d.of("web")
	d.restart("web")
	d.restServing("web", 3)
	for _, r := range before {
		if !spec.Ended(d.snap().Replica(r.GetMetadata().GetUid()).GetStatus().GetPhase()) {
			t.Errorf("%s was not replaced", r.GetMetadata().GetName())
		}
	}
}

// undrainable is why a drain of a node is refused.
func (w *world) undrainable(name string) []string {
	w.t.Helper()
	n := proto.CloneOf(w.snap().NodeByName(name))
	n.Spec = &v1.NodeSpec{Availability: spec.AvailabilityDraining, Drain: &v1.Drain{}}
	n.Status.State = spec.NodeDraining
	var b state.Batch
	b.Update(n, n.GetMetadata().GetVersion())
	before, fork, now := w.snap(), w.snap().Fork(), time.Now()
	var workloads []string
	for r := range before.ReplicasOn(n.GetMetadata().GetUid()) {
		workloads = append(workloads, r.GetSpec().GetWorkloadUid())
	}
	if _, _, err := (Placement{}).Forecast(now, fork, b.Transaction(now), slices.Compact(workloads)); err != nil {
		w.t.Fatalf("forecast: %v", err)
	}
	reasons, _ := Placement{}.Undrainable(before, fork.Snapshot(), n)
	return reasons
}

// A drain that cannot empty the node, or stops a service for lack of another node, is refused. The reason says what is and
// what would be.
func TestImpossibleDrainsAreRefused(t *testing.T) {
	for _, c := range []struct {
		replicas, keep int32
		roomOnB, want  string
	}{
		{3, 3, "4", ""},
		{3, 3, "100m", "web needs 3 serving replicas (minAvailable) and has 3; no other node would fit: b: needs 1 CPU, 100m of 100m free"},
		{3, 2, "100m", "web needs 2 serving replicas (minAvailable): it has 3 now and would have 2 before node a is empty, because no other node would fit: b: needs 1 CPU, 100m of 100m free"},
		{3, 0, "100m", "web may lack one of its 3 replicas during a drain: it has 3 now and would have 2 before node a is empty, because no other node would fit: b: needs 1 CPU, 100m of 100m free"},
		{1, 0, "100m", "web has 1 serving replica now and would have none, because no other node would fit: b: needs 1 CPU, 100m of 100m free"},
		{1, 0, "4", ""},
	} {
		d := drainable(t, c.replicas, c.keep, c.roomOnB)
		if got := strings.Join(d.undrainable("a"), "\n"); got != c.want {
			t.Errorf("minAvailable %d of %d with %s CPU on b: the drain is refused with\n%s\nwant\n%s", c.keep, c.replicas, c.roomOnB, got, c.want)
		}
	}
}

// A singleton and a service that recreates its replicas stop before they start elsewhere. That is fine, if they can.
func TestDrainMayMoveWhatMustNotRunTwice(t *testing.T) {
	for what, change := range map[string]func(*v1.WorkloadSpec){
		"singleton": func(s *v1.WorkloadSpec) { s.Singleton = true },
		"recreate":  func(s *v1.WorkloadSpec) { s.Update = &v1.Update{Strategy: spec.StrategyRecreate} },
	} {
		for room, want := range map[string]int{"4": 0, "100m": 1} {
			w := newWorld(t)
			w.addNode("a", "4")
			made := newWorkload(w.newUID(), "web", 1, "1")
			change(made.Spec)
			w.change(func(b *state.Batch) {
				w.revise(b, made)
				b.Create(made)
			})
			d := driveFinitely(w)
			d.rest()
			d.addNode("b", room)
			if got := d.undrainable("a"); len(got) != want || want > 0 && !strings.HasPrefix(got[0], "web has 1 serving replica now and would have none") {
				t.Errorf("%s, with %s CPU on b: the drain is refused with %q", what, room, got)
			}
		}
	}
}
