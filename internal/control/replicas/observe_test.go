package replicas

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

func TestPendingReplicasAreCountedByMainReason(t *testing.T) {
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

// outcome is the result of a proposal.
type outcome struct {
	result state.Result
	err    error
}

// A decision counts once, even if it has to be repeated because the proposal failed or left
// it out.
func TestDecisionsAreCountedOnCommit(t *testing.T) {
	for placed, outcomes := range map[int][]outcome{
		2: {{err: &state.ConflictError{}}, {}},
		0: {{result: state.Result{LeftOut: map[uint32]error{1: &state.ConflictError{}}}}},
	} {
		w := newWorld(t)
		w.addNode("n1", "4")
		w.addWorkload("web", 3, "2")
		registry := telemetry.NewRegistry()
		l := &Loop{Store: w.store, Metrics: telemetry.NewServer(registry)}
		batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
		for _, o := range outcomes {
			l.decided(t.Context(), w.snap(), batch.Transaction(w.now()), w.now())(o.result, o.err)
		}
		err := testutil.GatherAndCompare(registry.Gatherer(), strings.NewReader(fmt.Sprintf(`
# HELP cloudless_scheduling_decisions_total Scheduled replicas, by result: placed or unplaced.
# TYPE cloudless_scheduling_decisions_total counter
cloudless_scheduling_decisions_total{result="placed"} %d
cloudless_scheduling_decisions_total{result="unplaced"} 1
`, placed)), telemetry.SchedulingDecisions.Name)
		if err != nil {
			t.Error(err)
		}
	}
}
