package server

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A removed node learns that it was removed, and in which epoch. A node that is merely
// missing in the state does not: the state may be older than the node.
func TestOnlyARemovedNodeLearnsThatItWasRemoved(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2})
	_, err := c.enroll("stays", token)
	must(t, err)
	gone, err := c.enroll("gone", token)
	must(t, err)
	_, err = c.as(core.RoleAdmin).DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "gone"})
	must(t, err)
	c.change(func(snap *state.Snapshot, b *state.Batch) { // as if the cluster was recovered
		cluster := proto.CloneOf(snap.Cluster())
		cluster.Status.Epoch++
		b.Update(cluster, cluster.GetMetadata().GetVersion())
	})

	_, err = c.dial(gone.creds, "").WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	wantCode(t, err, codes.Unauthenticated, "was removed", "join it again")
	epoch := c.Store.Snapshot().Cluster().GetStatus().GetEpoch()
	if said, removed := api.RemovedNode(err); !removed || said != epoch {
		t.Errorf("the removed node got removed %t in epoch %d, want epoch %d", removed, said, epoch)
	}

	never := c.certificateOf(identity.KindNode, "0190aaaa-0000-7000-8000-000000000000")
	_, err = c.dial(never, "").WhoAmI(c.ctx, &v1.WhoAmIRequest{})
	wantCode(t, err, codes.Unauthenticated, "not a member")
	if _, removed := api.RemovedNode(err); removed {
		t.Error("a node that the state never had learns that it was removed")
	}
}

func TestLastNodeIsRemovedByForceOnly(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2})
	_, err := c.enroll("vm", token)
	must(t, err)
	admin := c.as(core.RoleAdmin)
	_, err = admin.DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "vm"})
	wantCode(t, err, codes.FailedPrecondition, "node vm is the last node of the cluster", "0 replicas", "--force")
	_, err = admin.DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "vm", Force: true})
	must(t, err)
}

func TestNodeWithReplicasIsRemovedByForceOnly(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2})
	_, err := c.enroll("other", token)
	must(t, err)
	busy, err := c.enroll("busy", token)
	must(t, err)
	place := func(name, phase string) {
		c.change(func(_ *state.Snapshot, b *state.Batch) {
			b.Create(&v1.Replica{
				Metadata: &v1.Metadata{Uid: state.NewUID(), Name: name, Namespace: "default"},
				Spec:     &v1.ReplicaSpec{Workload: "web", NodeUid: busy.node.GetMetadata().GetUid()},
				Status:   &v1.ReplicaStatus{Phase: phase},
			})
		})
	}
	place("web-ended", spec.PhaseCompleted)
	place("web-1", spec.PhaseRunning)
	admin := c.as(core.RoleAdmin)
	_, err = admin.DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "busy"})
	wantCode(t, err, codes.FailedPrecondition, "node busy has 1 replica:", "cloudless node drain busy", "--force")
	_, err = admin.DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "busy", Force: true})
	must(t, err)
	for r := range c.Store.Snapshot().Replicas("", "") {
		want := map[string]string{"web-ended": spec.PhaseCompleted, "web-1": spec.PhaseLost}[r.GetMetadata().GetName()]
		if got := r.GetStatus().GetPhase(); got != want {
			t.Errorf("replica %s is %s, want %s", r.GetMetadata().GetName(), got, want)
		}
	}
}

// A singleton of a removed node may run there until its lease expires, so the removal alone does not end it.
func TestSingletonOfARemovedNodeIsNotLostYet(t *testing.T) {
	c := newCluster(t)
	token := c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode, Uses: 2})
	_, err := c.enroll("other", token)
	must(t, err)
	busy, err := c.enroll("busy", token)
	must(t, err)
	c.change(func(_ *state.Snapshot, b *state.Batch) {
		b.Create(&v1.Revision{
			Metadata: &v1.Metadata{Uid: "ledger-1"},
			Spec:     &v1.RevisionSpec{WorkloadUid: "ledger", Number: 1, Workload: &v1.WorkloadSpec{Singleton: true}},
		})
		b.Create(&v1.Replica{
			Metadata: &v1.Metadata{Uid: "ledger-replica", Name: "ledger-1", Namespace: "default"},
			Spec:     &v1.ReplicaSpec{Workload: "ledger", RevisionUid: "ledger-1", Node: "busy", NodeUid: busy.node.GetMetadata().GetUid()},
			Status:   &v1.ReplicaStatus{Phase: spec.PhaseRunning},
		})
	})
	_, err = c.as(core.RoleAdmin).DeleteNode(c.ctx, &v1.DeleteNodeRequest{Name: "busy", Force: true})
	must(t, err)
	stored := c.Store.Snapshot().Replica("ledger-replica")
	if stored.GetStatus().GetPhase() != spec.PhaseRunning {
		t.Errorf("it is %s: %s", stored.GetStatus().GetPhase(), stored.GetStatus().GetReason())
	}
	shown := c.presentReplica(c.Store.Snapshot(), stored).GetStatus()
	if want := "node busy was removed; it was running there"; shown.GetPhase() != spec.PhaseUnknown || shown.GetReason() != want {
		t.Errorf("it is shown as %s: %s", shown.GetPhase(), shown.GetReason())
	}
}
