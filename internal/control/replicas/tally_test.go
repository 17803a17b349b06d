package replicas

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A tick that uses a tally decides the same as one that examines all replicas.
func TestTallyDecidesLikeAFullExamination(t *testing.T) {
	passed, grown := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		followSteps(t, func(w *world, s step, now *state.Snapshot, kept *cluster) {
			for workload := range now.Workloads("", "") {
				due := Due{Workloads: map[string]bool{workload.GetMetadata().GetUid(): true}}
				looked, leftByLooking := Tick(w.now(), now, due, numbered())
				if missing, known := kept.lacks(workload); known && missing > 0 {
					grown++
				}
				if kept.settled(now, workload) {
					passed++
					if looked.Len() > 0 || !leftByLooking.Empty() {
						t.Fatalf("after %+v %s is settled, and yet there is %v to be done and %v left", s, workload.GetMetadata().GetName(), looked.Transaction(w.now()), leftByLooking)
					}
				}
				// This one uses the tally. Its batch is never proposed.
				counted, left := kept.tick(w.now(), now, due, numbered())
				if a, b := outline(counted), outline(looked); !slices.Equal(a, b) || !reflect.DeepEqual(left, leftByLooking) {
					t.Fatalf("after %+v the tally of %s leads to %q and leaves %v, a look to %q and leaves %v", s, workload.GetMetadata().GetName(), a, left, b, leftByLooking)
				}
			}
		})
	})
	if passed == 0 || grown == 0 {
		t.Errorf("%d were settled and %d grew", passed, grown)
	}
}

// numbered returns the same uids in the same order.
func numbered() func() string {
	n := 0
	return func() string {
		n++
		return fmt.Sprintf("ffffffff-0000-7000-8000-%012d", n)
	}
}

// outline is what a batch does to replicas, sorted.
func outline(b *state.Batch) (lines []string) {
	replicas, events, deleted := changed(b)
	for _, r := range replicas {
		lines = append(lines, fmt.Sprintf("%d of %s, revision %d, on %q, to be %s, is %s: %s", r.GetMetadata().GetVersion(), r.GetSpec().GetWorkload(), r.GetSpec().GetRevision(),
			r.GetSpec().GetNode(), r.GetSpec().GetDesired(), r.GetStatus().GetPhase(), r.GetStatus().GetReason()))
	}
	for _, e := range events {
		lines = append(lines, e.GetSpec().GetObjectKind()+" "+e.GetSpec().GetReason()+": "+e.GetSpec().GetMessage())
	}
	for _, key := range deleted {
		lines = append(lines, fmt.Sprintf("delete %s %s", key.GetKind(), key.GetUid()))
	}
	slices.Sort(lines)
	return lines
}

// A workload of many replicas is not examined for each of them that starts.
func TestLargeWorkloadIsNotExaminedForEachReplica(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "100")
	w.addWorkload("web", 40, "1m")
	d := drive(w)
	d.rest()
	uid := w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()
	if !d.loop.engine.cluster.settled(w.snap(), w.snap().Workload(uid)) {
		t.Fatalf("with %v it is not settled: %+v", w.phases("web"), d.loop.engine.cluster.tallies[uid])
	}
	if got := d.loop.engine.cluster.workloads(w.snap(), Due{PhaseChanged: map[string]bool{uid: true}}); len(got) != 0 {
		t.Errorf("it is looked at again: %v", got)
	}
	// A workload that is due by name is examined.
	if got := d.loop.engine.cluster.workloads(w.snap(), Due{Workloads: map[string]bool{uid: true}}); len(got) != 1 {
		t.Errorf("a workload that is due is passed over: %v", got)
	}
	w.setNode("a", "offline")
	d.follow()
	if d.loop.engine.cluster.settled(w.snap(), w.snap().Workload(uid)) {
		t.Error("it is settled although its node is offline")
	}
}

// Many placements in one tick share an event. Few have one each.
func TestManyPlacementsShareAnEvent(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "100")
	w.addNode("b", "100")
	w.addWorkload("web", maxPlacedEvents+1, "1m")
	w.addWorkload("lone", 1, "1m")
	tell := func() (said []string) {
		t.Helper()
		batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
		_, events, _ := changed(batch)
		w.apply(batch)
		for _, e := range events {
			said = append(said, fmt.Sprintf("%s %s: %s", e.GetSpec().GetObjectKind(), e.GetSpec().GetReason(), e.GetSpec().GetMessage()))
		}
		return said
	}
	got := tell()
	slices.Sort(got) // the order is that of the nodes
	if len(got) != 2 || got[0] != "workload Placed: 1 replica on 1 node" || got[1] != fmt.Sprintf("workload Placed: %d replicas on 2 nodes", maxPlacedEvents+1) {
		t.Errorf("said %q", got)
	}
	w.addWorkload("few", maxPlacedEvents, "1m")
	if got := tell(); len(got) != maxPlacedEvents || !strings.HasPrefix(got[0], "replica Placed: on node ") {
		t.Errorf("said %q", got)
	}
	var placed []*v1.Replica
	for r := range w.snap().Replicas("", "") {
		if r.GetStatus().GetPhase() == spec.PhasePlaced {
			placed = append(placed, r)
		}
	}
	if len(placed) != 2*maxPlacedEvents+2 {
		t.Errorf("%d replicas are placed", len(placed))
	}
}
