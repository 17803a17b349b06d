package replicas

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

func TestPendingReplicasAreCountedByWhatRefusesMostNodes(t *testing.T) {
	w := newWorld(t)
	pending := func() string { return fmt.Sprint(Placement{}.Pending(w.snap())) }
	if got := pending(); got != "map[]" {
		t.Errorf("of nothing, pending are %s", got)
	}
	settle := func() {
		batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
		if batch.Len() > 0 {
			w.apply(batch)
		}
	}
	w.addWorkload("web", 2, "3")
	settle()
	if got := pending(); got != "map[nodes:2]" {
		t.Errorf("without nodes, pending are %s", got)
	}
	w.addNode("n1", "4")
	if got := pending(); got != "map[fit:1 placing:1]" {
		t.Errorf("before the tick, pending are %s", got)
	}
	settle()
	if got := pending(); got != "map[fit:1]" {
		t.Errorf("with one node, pending are %s", got)
	}
	w.setNode("n1", "offline")
	if got := pending(); got != "map[ready:1]" {
		t.Errorf("with an offline node, pending are %s", got)
	}
}

// What is decided counts once, however often it has to be decided again.
func TestDecisionsAreCountedWhenTheyHold(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "4")
	w.addWorkload("web", 3, "2")
	registry := telemetry.NewRegistry()
	l := &Loop{Store: w.store, Metrics: telemetry.NewServer(registry)}
	batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	for _, outcome := range []error{&state.ConflictError{}, nil} {
		l.decided(t.Context(), w.snap(), batch.Transaction(w.now()), w.now())(state.Result{}, outcome)
	}
	err := testutil.GatherAndCompare(registry.Gatherer(), strings.NewReader(`
# HELP cloudless_scheduling_decisions_total Replicas for which a place was sought, by result: placed or unplaced.
# TYPE cloudless_scheduling_decisions_total counter
cloudless_scheduling_decisions_total{result="placed"} 2
cloudless_scheduling_decisions_total{result="unplaced"} 1
`), telemetry.SchedulingDecisions.Name)
	if err != nil {
		t.Error(err)
	}
}

// What a commit leaves out is decided again, too.
func TestWhatIsLeftOutIsNotCounted(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "4")
	w.addWorkload("web", 3, "2")
	registry := telemetry.NewRegistry()
	l := &Loop{Store: w.store, Metrics: telemetry.NewServer(registry)}
	batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	leftOut := state.Result{LeftOut: map[uint32]error{1: &state.ConflictError{}}}
	l.decided(t.Context(), w.snap(), batch.Transaction(w.now()), w.now())(leftOut, nil)
	err := testutil.GatherAndCompare(registry.Gatherer(), strings.NewReader(`
# HELP cloudless_scheduling_decisions_total Replicas for which a place was sought, by result: placed or unplaced.
# TYPE cloudless_scheduling_decisions_total counter
cloudless_scheduling_decisions_total{result="placed"} 0
cloudless_scheduling_decisions_total{result="unplaced"} 1
`), telemetry.SchedulingDecisions.Name)
	if err != nil {
		t.Error(err)
	}
}
