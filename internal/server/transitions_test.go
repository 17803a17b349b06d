package server

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Many replicas that start at once are told of together, few one by one; what
// has more to say is always told alone.
func TestManyStartsAreOneEvent(t *testing.T) {
	c := newCluster(t)
	store := state.New() // in which nobody interferes
	var b state.Batch
	b.Create(&v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}})
	for i := range fewTransitions + 2 {
		uid := fmt.Sprintf("r%03d", i)
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: uid, Name: "web-" + uid, Namespace: "default"},
			Spec:     &v1.ReplicaSpec{WorkloadUid: "w", Workload: "web", NodeUid: "n", Node: "n"}, Status: &v1.ReplicaStatus{Phase: spec.PhasePlaced},
		})
	}
	_, err := store.Apply(1, b.Transaction(time.Now()))
	must(t, err)
	tell := func(starting int) (said []string) {
		var b state.Batch
		transitions := &transitions{}
		record := func(i int, status *v1.ReplicaStatus) {
			c.recordOne(c.ctx, store.Snapshot(), &b, reported{"n", fmt.Sprintf("r%03d", i)}, status, transitions)
		}
		record(starting, &v1.ReplicaStatus{Phase: spec.PhaseFailed, Reason: "no such program"})
		for i := range starting {
			record(i, &v1.ReplicaStatus{Phase: spec.PhaseRunning})
		}
		transitions.tell(c.ctx, c.Server, store.Snapshot(), &b)
		for _, change := range b.Transaction(time.Now()).GetChanges() {
			if e := change.GetPut().GetEvent().GetSpec(); e != nil {
				said = append(said, fmt.Sprintf("%s by %s: %s %s", e.GetObjectName(), e.GetActor(), e.GetReason(), e.GetMessage()))
			}
		}
		return said
	}
	want := []string{"web-r002 by node/n: Failed no such program", "web-r000 by node/n: Started ", "web-r001 by node/n: Started "}
	if got := tell(2); !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
	many := fewTransitions + 1
	want = []string{
		fmt.Sprintf("web-r%03d by node/n: Failed no such program", many),
		fmt.Sprintf("web by server/%s: Started %d replicas", c.UID, many),
	}
	if got := tell(many); !slices.Equal(got, want) {
		t.Errorf("said %q, want %q", got, want)
	}
}
