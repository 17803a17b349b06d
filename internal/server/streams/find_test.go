package streams

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A replica that serves is preferred, and a program that does not serve yet can still be debugged.
func TestServingReplicaIsPreferred(t *testing.T) {
	var b state.Batch
	for _, workload := range []string{"web", "slow"} {
		b.Create(&v1.Workload{Metadata: &v1.Metadata{Uid: workload, Name: workload, Namespace: "default"}})
	}
	for name, unready := range map[string]string{"web-1": "It is busy.", "web-2": "", "slow-1": "It is busy."} {
		workload, _, _ := strings.Cut(name, "-")
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"},
			Spec:     &v1.ReplicaSpec{Workload: workload, WorkloadUid: workload},
			Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning, Unready: unready},
		})
	}
	store := state.New()
	if _, err := store.Apply(1, b.Transaction(time.Now())); err != nil {
		t.Fatal(err)
	}
	for workload, want := range map[string]string{"web": "web-2", "slow": "slow-1"} {
		if r, err := RunningReplica(store.Snapshot(), &v1.ExecStart{Workload: workload}); err != nil || r.GetMetadata().GetName() != want {
			t.Errorf("exec %s goes to %v, %v", workload, r, err)
		}
	}
}

// ps shows the names of replicas, so exec, cp and logs accept them in place of a workload's name.
func TestReplicaIsFoundByItsNameAlone(t *testing.T) {
	var b state.Batch
	b.Create(&v1.Workload{Metadata: &v1.Metadata{Uid: "w", Name: "web", Namespace: "default"}})
	for _, name := range []string{"web-1", "web-2"} {
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"},
			Spec:     &v1.ReplicaSpec{Workload: "web", WorkloadUid: "w"},
			Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning},
		})
	}
	store := state.New()
	if _, err := store.Apply(1, b.Transaction(time.Now())); err != nil {
		t.Fatal(err)
	}
	snap := store.Snapshot()
	streams := New(Options{HasOutput: func(*state.Snapshot, *v1.Workload) error { return nil }})
	for _, name := range []string{"web-1", "web-2"} {
		if r, err := RunningReplica(snap, &v1.ExecStart{Workload: name}); err != nil || r.GetMetadata().GetName() != name {
			t.Errorf("exec %s goes to %v, %v", name, r, err)
		}
		target, err := streams.selectLogs(snap, &v1.LogsRequest{Workload: name})
		if err != nil || target.replica != name || target.uid != "w" {
			t.Errorf("logs %s reads %+v, %v", name, target, err)
		}
	}
	for _, missing := range []struct {
		start *v1.ExecStart
		why   string
	}{
		{&v1.ExecStart{Workload: "web-3"}, "workload web-3 does not exist in namespace default"},
		{&v1.ExecStart{Workload: "web-1", Replica: "web-2"}, "it is a replica of workload web"},
	} {
		_, err := RunningReplica(snap, missing.start)
		if status.Code(core.StatusOf(err)) != codes.NotFound || !strings.Contains(err.Error(), missing.why) {
			t.Errorf("%v: %v", missing.start, err)
		}
	}
}
