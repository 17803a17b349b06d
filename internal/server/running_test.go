package server

import (
	"testing"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// ps shows the names of replicas, so exec, cp and logs take them where they take a workload.
func TestReplicaIsFoundByItsNameAlone(t *testing.T) {
	c := newCluster(t)
	w, err := c.as(core.RoleAdmin).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		for _, name := range []string{"web-1", "web-2"} {
			b.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: name, Name: name, Namespace: "default"},
				Spec:     &v1.ReplicaSpec{Workload: "web", WorkloadUid: w.GetMetadata().GetUid()},
				Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning},
			})
		}
	})
	snap := c.Store.Snapshot()
	for _, name := range []string{"web-1", "web-2"} {
		if r, err := runningReplica(snap, &v1.ExecStart{Workload: name}); err != nil || r.GetMetadata().GetName() != name {
			t.Errorf("exec %s goes to %v, %v", name, r, err)
		}
		target, err := logTarget(snap, &v1.LogsRequest{Workload: name})
		if err != nil || target.replica != name || target.uid != w.GetMetadata().GetUid() {
			t.Errorf("logs %s are those of %+v, %v", name, target, err)
		}
	}
	_, err = runningReplica(snap, &v1.ExecStart{Workload: "web-3"})
	wantCode(t, core.StatusOf(err), codes.NotFound, "workload web-3 does not exist in namespace default")
	// A replica of another one is not meant.
	_, err = runningReplica(snap, &v1.ExecStart{Workload: "web-1", Replica: "web-2"})
	wantCode(t, core.StatusOf(err), codes.NotFound, "it is a replica of workload web")
}
