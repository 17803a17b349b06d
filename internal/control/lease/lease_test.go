package lease

import (
	"slices"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// with is a state with a replica r on node n.
func with(t *testing.T, phase string) *state.Snapshot {
	t.Helper()
	var b state.Batch
	b.Create(&v1.Replica{
		Metadata: &v1.Metadata{Uid: "r", Name: "r", Namespace: "default"},
		Spec:     &v1.ReplicaSpec{WorkloadUid: "w", NodeUid: "n"}, Status: &v1.ReplicaStatus{Phase: phase},
	})
	store := state.New()
	if _, err := store.Apply(1, b.Transaction(began)); err != nil {
		t.Fatal(err)
	}
	return store.Snapshot()
}

func TestReplicaIsFencedOnlyAfterItsLease(t *testing.T) {
	var leases Table
	leases.Begin(began)
	now := began.Add(time.Hour)
	if got := leases.Grant(now, with(t, spec.PhaseRunning), "n", []string{"r"}); !slices.Equal(got, []string{"r"}) {
		t.Fatalf("granted to %v", got)
	}
	again, fenced := leases.Fence(now.Add(Duration), "r")
	if fenced {
		t.Fatal("fenced without a margin after the lease")
	}
	if _, fenced = leases.Fence(again, "r"); !fenced {
		t.Fatal("never fenced")
	}
	// A late heartbeat of the node must not bring it back: another replica may run now.
	if got := leases.Grant(again, with(t, spec.PhaseRunning), "n", []string{"r"}); len(got) > 0 {
		t.Error("a fenced replica gets a lease")
	}
	leases.Admit("r")
	if got := leases.Grant(again, with(t, spec.PhaseRunning), "n", []string{"r"}); len(got) != 1 {
		t.Error("a replica whose node is back gets no lease")
	}
}

func TestNewLeaderWaitsForTheLeasesOfTheOldOne(t *testing.T) {
	var leases Table
	leases.Begin(began)
	if _, fenced := leases.Fence(began.Add(Duration), "r"); fenced {
		t.Error("fenced although an earlier leader may have granted a lease just before")
	}
	if _, fenced := leases.Fence(began.Add(Duration+margin), "r"); !fenced {
		t.Error("never fenced")
	}
}

func TestOnlyLiveReplicasOfTheNodeGetLeases(t *testing.T) {
	var leases Table
	if got := leases.Grant(began, with(t, spec.PhaseLost), "n", []string{"r"}); len(got) > 0 {
		t.Error("a lost replica gets a lease")
	}
	if got := leases.Grant(began, with(t, spec.PhaseRunning), "m", []string{"r", "unknown"}); len(got) > 0 {
		t.Error("another node's replica gets a lease")
	}
}
