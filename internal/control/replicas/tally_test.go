package replicas

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/state"
)

// Whoever is passed over because of its tally has nothing to be done for, as one
// finds out who looks at all of its replicas.
func TestNothingIsDueForWhoeverIsSettled(t *testing.T) {
	passed := 0
	rapid.Check(t, func(t *rapid.T) {
		followSteps(t, func(w *world, s step, now *state.Snapshot, kept *cluster) {
			for workload := range now.Workloads("", "") {
				uid := workload.GetMetadata().GetUid()
				due := Due{Workloads: map[string]bool{uid: true}}
				if kept.settled(workload) {
					passed++
					if batch, left := Tick(w.now(), now, due, w.newUID); batch.Len() > 0 || !left.Empty() {
						t.Fatalf("after %+v %s is settled, and yet there is %v to be done and %v left", s, workload.GetMetadata().GetName(), batch.Transaction(w.now()), left)
					}
				}
				kept.tick(w.now(), now, due, w.newUID) // counts, and its batch is never proposed
			}
		})
	})
	if passed == 0 {
		t.Error("nobody was ever settled")
	}
}

// A workload of many replicas is not looked at for each of them that starts.
func TestLargeWorkloadIsNotLookedAtForEachReplica(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "100")
	w.addWorkload("web", 40, "1m")
	d := drive(w)
	d.rest()
	uid := w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()
	if !d.loop.cluster.settled(w.snap().Workload(uid)) {
		t.Fatalf("with %v it is not settled: %+v", w.phases("web"), d.loop.cluster.tallies[uid])
	}
	if got := d.loop.cluster.workloads(w.snap(), Due{Stirred: map[string]bool{uid: true}}); len(got) != 0 {
		t.Errorf("it is looked at again: %v", got)
	}
	// Who is told to look does so.
	if got := d.loop.cluster.workloads(w.snap(), Due{Workloads: map[string]bool{uid: true}}); len(got) != 1 {
		t.Errorf("a workload that is due is passed over: %v", got)
	}
	w.setNode("a", "offline")
	_, changes, err := d.loop.feed.Newest()
	if err != nil {
		t.Fatal(err)
	}
	d.loop.follow(changes)
	if d.loop.cluster.settled(w.snap().Workload(uid)) {
		t.Error("it is settled although its node is offline")
	}
}

// Many placements of one moment are told together, few one by one.
func TestManyPlacementsAreOneEvent(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "100")
	w.addNode("b", "100")
	w.addWorkload("web", fewPlaced+1, "1m")
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
	slices.Sort(got) // they are in the order of the nodes
	if len(got) != 2 || got[0] != "workload Placed: 1 replica on 1 node" || got[1] != fmt.Sprintf("workload Placed: %d replicas on 2 nodes", fewPlaced+1) {
		t.Errorf("said %q", got)
	}
	w.addWorkload("few", fewPlaced, "1m")
	if got := tell(); len(got) != fewPlaced || !strings.HasPrefix(got[0], "replica Placed: on node ") {
		t.Errorf("said %q", got)
	}
	var placed []*v1.Replica
	for r := range w.snap().Replicas("", "") {
		if r.GetStatus().GetPhase() == rollout.PhasePlaced {
			placed = append(placed, r)
		}
	}
	if len(placed) != 2*fewPlaced+2 {
		t.Errorf("%d replicas are placed", len(placed))
	}
}
