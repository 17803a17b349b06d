package sessions

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A few replicas that start at once have an event each. Events with a message are never merged.
func TestManyStartsAreOneEvent(t *testing.T) {
	objects := []state.Object{&v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}}}
	for i := range fewTransitions + 2 {
		uid := fmt.Sprintf("r%03d", i)
		objects = append(objects, &v1.Replica{
			Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
			Spec:     &v1.ReplicaSpec{WorkloadUid: "w", Workload: "web", NodeUid: "n", Node: "n"}, Status: &v1.ReplicaStatus{Phase: spec.PhasePlaced},
		})
	}
	s, snap := unitSessions(), storeWith(t, objects...).Snapshot()
	events := func(starting int) (all []string) {
		var b state.Batch
		plain := &transitions{}
		report := func(i int, status *v1.ReplicaStatus) {
			s.addReport(t.Context(), snap, &b, reportKey{"n", fmt.Sprintf("r%03d", i)}, status, plain)
		}
		report(starting, &v1.ReplicaStatus{Phase: spec.PhaseFailed, Reason: "no such program"})
		for i := range starting {
			report(i, &v1.ReplicaStatus{Phase: spec.PhaseRunning})
		}
		plain.addEvents(t.Context(), s, snap, &b)
		for _, change := range b.Transaction(time.Now()).GetChanges() {
			if e := change.GetPut().GetEvent().GetSpec(); e != nil {
				all = append(all, fmt.Sprintf("%s by %s: %s %s", e.GetObjectName(), e.GetActor(), e.GetReason(), e.GetMessage()))
			}
		}
		return all
	}
	want := []string{"web-r002 by node/n: Failed no such program", "web-r000 by node/n: Started ", "web-r001 by node/n: Started "}
	if got := events(2); !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
	many := fewTransitions + 1
	want = []string{
		fmt.Sprintf("web-r%03d by node/n: Failed no such program", many),
		fmt.Sprintf("web by server/%s: Started %d replicas", s.UID, many),
	}
	if got := events(many); !slices.Equal(got, want) {
		t.Errorf("the events are %q, want %q", got, want)
	}
}
