package placement

import (
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Nobody knows whether a removed node has stopped. A singleton's replica on it may run until its lease has expired, so the
// removal does not end it: another one would start at once.
func TestRemovedNodeKeepsItsSingletons(t *testing.T) {
	store := state.New()
	var b state.Batch
	n := &v1.Node{Metadata: &v1.Metadata{Uid: "n", Name: "n"}, Spec: &v1.NodeSpec{}, Status: &v1.NodeStatus{}}
	b.Create(n)
	for name, single := range map[string]bool{"web": false, "ledger": true} {
		b.Create(&v1.Workload{
			Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"}, Spec: &v1.WorkloadSpec{Singleton: single}, Status: &v1.WorkloadStatus{},
		})
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: name + "-1", Name: name + "-1", Namespace: "default"},
			Spec:     &v1.ReplicaSpec{WorkloadUid: name, NodeUid: "n"}, Status: &v1.ReplicaStatus{Phase: spec.PhaseRunning},
		})
	}
	apply := func(index uint64, b *state.Batch) {
		if _, err := store.Apply(index, b.Transaction(time.Unix(1, 0))); err != nil {
			t.Fatal(err)
		}
	}
	apply(1, &b)
	var removal state.Batch
	lost := LoseReplicas(time.Unix(1, 0), store.Snapshot(), &removal, n)
	apply(2, &removal)
	if lost != 2 {
		t.Errorf("%d replicas count as lost", lost)
	}
	for name, want := range map[string]string{"web-1": spec.PhaseLost, "ledger-1": spec.PhaseRunning} {
		if got := store.Snapshot().Replica(name).GetStatus().GetPhase(); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
