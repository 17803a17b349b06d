package server

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func TestRateOfFailoverIsASettingThatCanBeRolledBack(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	_, err := c.set(admin, func(s *v1.ClusterSpec) { s.Failover = &v1.Failover{Replicas: new(int32(0))} })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.failover.replicas: must be between 1 and 100000")
	_, err = c.set(admin, func(s *v1.ClusterSpec) { s.Failover = &v1.Failover{Replicas: new(int32(5)), Per: "2h"} })
	wantCode(t, err, codes.InvalidArgument, "spec.cluster.failover.per: must be between 1s and 1h")

	made := c.mustSet(admin, func(s *v1.ClusterSpec) { s.Failover = &v1.Failover{Replicas: new(int32(5)), Per: "60s"} })
	if got := made.GetSpec().GetCluster().GetFailover(); got.GetReplicas() != 5 || got.GetPer() != "1m" {
		t.Errorf("the setting is %v", got)
	}
	back, err := admin.RollbackConfiguration(c.ctx, &v1.RollbackConfigurationRequest{Number: 1})
	must(t, err)
	if back.GetSpec().GetCluster().GetFailover() != nil || len(back.GetSpec().GetChanges()) != 2 {
		t.Errorf("after the rollback the setting is %v, and has changed by %v", back.GetSpec().GetCluster().GetFailover(), back.GetSpec().GetChanges())
	}
}

// A lost replica that waits for its turn, and its workload, say so. Nothing else is wrong.
func TestLostReplicaSaysThatTheRateIsLimited(t *testing.T) {
	c := newCluster(t)
	c.configure(func(s *v1.ClusterSpec) {
		s.Liveness, s.Failover = &v1.Liveness{Reconnect: "1s"}, &v1.Failover{Replicas: new(int32(1)), Per: "1h"}
	})
	lost := c.work("n1", idle)
	op := c.as(core.RoleOperator)
	asked := workload("web")
	asked.Spec.Replicas = new(int32(3))
	made := c.create(op, asked)
	c.running(made.GetMetadata().GetUid(), 3)
	c.work("n2", idle)
	lost.leave()
	c.inState(lost.uid(), spec.NodeOffline)
	c.until(func(snap *state.Snapshot) bool {
		for e := range snap.Events("") {
			if e.GetSpec().GetReason() == "FailoverLimited" {
				return true
			}
		}
		return false
	})
	const limit = "lost replicas are replaced at a limited rate, at most 1 within 1h (failover.replicas and failover.per of the configuration)"
	w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	must(t, err)
	if got := w.GetStatus().GetReason(); got != "replicas on an offline node: n1; "+limit {
		t.Errorf("the workload says %q", got)
	}
	if len(w.GetStatus().GetUnplaced()) != 0 {
		t.Errorf("nodes are said to refuse: %v", w.GetStatus().GetUnplaced())
	}
	all, err := op.ListReplicas(c.ctx, &v1.ListReplicasRequest{Workload: "web"})
	must(t, err)
	waiting := 0
	for _, r := range all.GetItems() {
		if r.GetStatus().GetReason() == "node n1 is offline; it was running there; "+limit {
			waiting++
		}
	}
	if waiting < 2 {
		t.Errorf("%d replicas say that they wait for their turn, want at least 2: %v", waiting, all.GetItems())
	}
	explained, err := op.GetExplanation(c.ctx, &v1.GetExplanationRequest{Name: "web"})
	must(t, err)
	if got := explained.GetSummary(); !strings.HasSuffix(got, " on a node that is offline, and "+limit) {
		t.Errorf("the explanation says %q", got)
	}
	c.until(func(*state.Snapshot) bool { return value(c.scrape(op.token), "cloudless_lost_replicas") == "2" }) // one was replaced
}

// A replica that waits because of earlier ones says until when, why and what to do.
func TestReplicaThatWaitsForATimeSaysWhy(t *testing.T) {
	c := newCluster(t)
	c.work("n1", idle)
	c.work("n2", idle)
	op := c.as(core.RoleOperator)
	made := c.create(op, workload("web"))
	c.running(made.GetMetadata().GetUid(), 1)
	// As after two losses: its replica is the second in a row.
	var at time.Time
	c.change(func(snap *state.Snapshot, b *state.Batch) {
		for old := range snap.ReplicasOf(made.GetMetadata().GetUid()) {
			r := proto.CloneOf(old)
			r.Spec.Replaces = &v1.Replaced{ReplicaUid: "r0", Cause: "evicted", Times: 1, Nodes: []string{"n2"}}
			r.Status.Phase, r.Status.EndTime = spec.PhaseStopped, timestamppb.Now()
			r.Status.Reason = "Evicted: the machine was short of memory."
			b.Update(r, old.GetMetadata().GetVersion())
		}
	})
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOf(made.GetMetadata().GetUid()) {
			if r.GetStatus().GetPhase() == spec.PhasePending && r.GetSpec().GetNotBefore() != nil {
				at = r.GetSpec().GetNotBefore().AsTime()
				return true
			}
		}
		return false
	})
	if pause := time.Until(at); pause < 50*time.Second || pause > 75*time.Second {
		t.Errorf("it waits for another %s", pause)
	}
	why := "waits until " + at.UTC().Format("2006-01-02 15:04:05 MST") + ": the last 2 replicas in a row were evicted for lack of memory soon after they had started (on n2, n1); " +
		"fix it, or try at once: cloudless workload restart web"
	w, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	must(t, err)
	if got := w.GetStatus().GetReason(); !strings.HasSuffix(got, why) {
		t.Errorf("the workload says %q, want %q", got, why)
	}
	explained, err := op.GetExplanation(c.ctx, &v1.GetExplanationRequest{Name: "web"})
	must(t, err)
	if got := explained.String(); !strings.Contains(got, why) {
		t.Errorf("the explanation %s lacks %q", got, why)
	}
}
