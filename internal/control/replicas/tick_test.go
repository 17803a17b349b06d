package replicas

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func TestNewWorkloadIsCreatedAndPlacedInOneTick(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addNode("b", "4")
	w.addWorkload("web", 2, "500m")
	batch, left := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	made, events, _ := changed(batch)
	if len(made) != 2 || !left.Empty() {
		t.Fatalf("made %v, left %v", made, left)
	}
	of := w.snap().WorkloadByName("default", "web")
	on := map[string]bool{}
	for _, r := range made {
		on[r.GetSpec().GetNode()] = true
		if r.GetStatus().GetPhase() != spec.PhasePlaced || r.GetSpec().GetDesired() != spec.DesiredRunning ||
			r.GetSpec().GetRevisionUid() != of.GetStatus().GetRevisionUid() || r.GetMetadata().GetLabels()["app"] != "web" ||
			!strings.HasPrefix(r.GetMetadata().GetName(), "web-") {
			t.Errorf("made %v", r)
		}
	}
	if !on["a"] || !on["b"] {
		t.Errorf("the replicas are on %v, want them apart", on)
	}
	for _, e := range events {
		if e.GetSpec().GetReason() != "Placed" || !strings.HasPrefix(e.GetSpec().GetMessage(), "on node ") {
			t.Errorf("said %v", e.GetSpec())
		}
	}
	w.apply(batch)
	if w.tick() {
		t.Error("a second tick changes something")
	}
}

func TestReplicaThatFitsNowhereStaysPendingAndSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.addNode("small", "1")
	w.addWorkload("big", 2, "8")
	w.tick()
	if got := w.phases("big"); !maps.Equal(got, map[string]int{spec.PhasePending: 2}) {
		t.Fatalf("the replicas are %v", got)
	}
	for r := range w.snap().ReplicasOn("") {
		if !strings.Contains(r.GetStatus().GetReason(), "8 CPU") {
			t.Errorf("pending because %q", r.GetStatus().GetReason())
		}
	}
	if w.tick() {
		t.Error("it says the same thing again")
	}
	why := Placement{}.Explain(w.snap(), w.snap().WorkloadByName("default", "big").GetMetadata().GetUid())
	if len(why) != 1 || why[0].GetNode() != "small" || !strings.Contains(why[0].GetReason(), "needs 8 CPU") {
		t.Errorf("explained by %v", why)
	}
	// New capacity is used.
	w.addNode("large", "64")
	w.settle()
	if got := w.phases("big"); got[spec.PhaseRunning] != 2 {
		t.Errorf("with room the replicas are %v", got)
	}
	if why := (Placement{}).Explain(w.snap(), w.snap().WorkloadByName("default", "big").GetMetadata().GetUid()); len(why) != 0 {
		t.Errorf("what fits is explained by %v", why)
	}
}

func TestNothingIsPlacedOnANodeThatIsNotReady(t *testing.T) {
	for _, nodeState := range []string{"enrolling", "offline", "cordoned", "draining", "failed", ""} {
		w := newWorld(t)
		w.addNode("a", "4")
		w.setNode("a", nodeState)
		w.addWorkload("web", 1, "1")
		w.tick()
		if got := w.phases("web"); got[spec.PhasePending] != 1 {
			t.Errorf("with a node that is %q the replicas are %v", nodeState, got)
		}
	}
}

func TestUnwantedPendingReplicaStopsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.addWorkload("web", 2, "1")
	w.tick()
	w.scale("web", 1)
	// A node joins in the same tick: the stopped replica must not be placed as well.
	w.addNode("a", "4")
	w.tick()
	if got := w.phases("web"); !maps.Equal(got, map[string]int{spec.PhaseStopped: 1, spec.PhasePlaced: 1}) {
		t.Fatalf("the replicas are %v", got)
	}
	for r := range w.snap().ReplicasOn("") {
		if r.GetStatus().GetEndTime() == nil || r.GetSpec().GetDesired() != spec.DesiredStopped {
			t.Errorf("it ended as %v", r)
		}
	}
}

func TestDeletionStopsReplicasBeforeTheWorkload(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 2, "1")
	w.settle()
	uid := w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()
	w.delete("web")
	w.tick()
	if w.snap().Workload(uid) == nil {
		t.Fatal("the workload went before its replicas had stopped")
	}
	w.settle()
	if w.snap().Workload(uid) != nil || w.snap().Count(state.KindRevision) != 0 {
		t.Error("the workload or its revision is still there")
	}
	ended := 0
	for r := range w.snap().ReplicasOf(uid) {
		if r.GetStatus().GetPhase() == spec.PhaseStopped {
			ended++
		}
	}
	if ended != 2 {
		t.Errorf("%d ended replicas are kept for their logs, want 2", ended)
	}
}

func TestRestartKeepsTheRestServing(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 3, "1")
	w.settle()
	w.restart("web")
	for w.tick() || w.work() {
		if running := w.phases("web")[spec.PhaseRunning]; running < 2 {
			t.Fatalf("only %d replicas serve", running)
		}
	}
	current := w.snap().WorkloadByName("default", "web").GetStatus().GetRevisionUid()
	for r := range w.snap().ReplicasOf(w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) != (r.GetSpec().GetRevisionUid() == current) {
			t.Errorf("after the restart there is %v", r)
		}
	}
}

// A workload may be larger than a transaction.
func TestLargeWorkloadTakesSeveralTicksOfBoundedSize(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "100")
	w.addWorkload("web", 3*maxReplicas+1, "1m")
	w.edit("web", func(_ *state.Batch, of *v1.Workload) {
		of.Metadata.Labels = map[string]string{}
		for i := range 64 { // the maximum number and length
			of.Metadata.Labels[strings.Repeat("p", 250)+"/"+strings.Repeat("k", 60)+string(rune('A'+i%26))+string(rune('a'+i/26))] = strings.Repeat("v", 63)
		}
	})
	ticks := 0
	run := func(due Due) {
		t.Helper()
		for !due.Empty() {
			batch, left := Tick(w.now(), w.snap(), due, w.newUID)
			if size := proto.Size(batch.Transaction(w.now())); size > consensus.MaxTransaction {
				t.Fatalf("a tick makes a transaction of %d bytes", size)
			}
			if batch.Len() == 0 {
				break
			}
			ticks++
			w.apply(batch)
			due = left
		}
	}
	run(everything(w.snap()))
	if got := w.phases("web")[spec.PhasePlaced]; got != 3*maxReplicas+1 || ticks < 4 {
		t.Errorf("%d replicas are placed after %d ticks", got, ticks)
	}
	// Deleting it takes as many ticks.
	w.delete("web")
	run(everything(w.snap()))
	stopping := 0
	for r := range w.snap().Replicas("", "") {
		if r.GetSpec().GetDesired() == spec.DesiredStopped {
			stopping++
		}
	}
	if stopping != 3*maxReplicas+1 {
		t.Errorf("%d replicas are to stop", stopping)
	}
}

func TestManyPendingReplicasArePlacedOverSeveralTicks(t *testing.T) {
	w := newWorld(t)
	w.addWorkload("web", maxReplicas+10, "1m")
	for w.tick() {
	}
	w.addNode("a", "100")
	batch, left := Tick(w.now(), w.snap(), Due{Placement: true}, w.newUID)
	w.apply(batch)
	if got := w.phases("web")[spec.PhasePlaced]; got != maxReplicas || left.Empty() {
		t.Fatalf("%d are placed at first, left is %v", got, left)
	}
	batch, left = Tick(w.now(), w.snap(), left, w.newUID)
	w.apply(batch)
	if got := w.phases("web")[spec.PhasePlaced]; got != maxReplicas+10 || !left.Empty() {
		t.Errorf("%d are placed in the end, left is %v", got, left)
	}
}

func TestRequestedIsTheSumOfLiveReplicas(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 3, "500m")
	w.settle()
	w.scale("web", 2)
	w.settle()
	got := Placement{}.Requested(w.snap(), w.snap().NodeByName("a").GetMetadata().GetUid())
	if got.GetCpu() != "1" {
		t.Errorf("requested %v, want 1 CPU", got)
	}
	if got := (Placement{}).Requested(w.snap(), "nope"); got != nil {
		t.Errorf("a node that is not there has %v", got)
	}
}

// A new revision that needs more than there is leaves the old one serving, says why, and
// continues when there is room.
func TestRevisionThatDoesNotFitReplacesNothing(t *testing.T) {
	w := newWorld(t)
	w.addNode("small", "2")
	w.addWorkload("web", 2, "1")
	w.settle()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Cpu = "8"
		w.revise(b, of)
	})
	_, left := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	uid := w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()
	if !left.Waiting[uid] {
		t.Error("the workload does not wait for room")
	}
	w.settle()
	if got := w.phases("web"); !maps.Equal(got, map[string]int{spec.PhaseRunning: 2}) {
		t.Fatalf("the replicas are %v", got)
	}
	reasons := Placement{}.Explain(w.snap(), uid)
	if len(reasons) != 1 || !strings.Contains(reasons[0].GetReason(), "8 CPU") {
		t.Errorf("explained by %v", reasons)
	}
	w.addNode("large", "16")
	w.settle()
	for r := range w.snap().ReplicasOf(uid) {
		if spec.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetNode() != "large" {
			t.Errorf("%s is still on %s", r.GetMetadata().GetName(), r.GetSpec().GetNode())
		}
	}
}

// An outdated replica whose successor fits nowhere, because its node is cordoned, does not
// delay the others.
func TestStuckReplicaDelaysNoOther(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addNode("b", "1")
	w.addWorkload("web", 2, "1")
	w.settle()
	uid := w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()
	oldest := placement.ByUID(w.snap(), uid)[0]
	w.setNode(oldest.GetSpec().GetNode(), "cordoned")
	w.restart("web")
	w.settle()
	var kept, replaced int
	for r := range w.snap().ReplicasOf(uid) {
		switch {
		case r.GetStatus().GetPhase() != spec.PhaseRunning:
		case r.GetMetadata().GetUid() == oldest.GetMetadata().GetUid():
			kept++
		case r.GetSpec().GetRevision() == 2:
			replaced++
		}
	}
	if kept != 1 || replaced != 1 {
		t.Errorf("%d kept on the cordoned node and %d replaced on the other, want one of each", kept, replaced)
	}
}
