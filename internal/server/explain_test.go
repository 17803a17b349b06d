package server

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/relay"
	"github.com/cloudless/cloudless/internal/state"
)

func TestReadersMayExplain(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	c.work("n1", idle)
	web := c.create(op, workload("web", cpuOf("3")))
	c.running(web.GetMetadata().GetUid(), 1)
	e, err := viewer.GetExplanation(c.ctx, &v1.GetExplanationRequest{Name: "web"})
	must(t, err)
	if e.GetPhase() != "running" || e.GetSummary() != "1 of 1 replica has a node" || e.GetReplicas()[0].GetReason() != "n1 is the only node that would take it" {
		t.Errorf("web is explained by %v", e)
	}
	if n := e.GetNodes()[0]; n.GetNode() != "n1" || n.GetRank() != 0 || n.GetRefusals()[0].GetReason() != "needs 3 CPU, 1 of 4 free" {
		t.Errorf("n1 is explained by %v", n)
	}
	stale := metadata.AppendToOutgoingContext(c.ctx, relay.Consistency, relay.Stale)
	if e, err := viewer.GetExplanation(stale, &v1.GetExplanationRequest{Name: "web", Node: "n1"}); err != nil || len(e.GetNodes()) != 1 {
		t.Errorf("what one server knows is %v, %v", e, err)
	}

	_, err = viewer.GetExplanation(c.ctx, &v1.GetExplanationRequest{Name: "wep"})
	wantCode(t, err, codes.NotFound, "did you mean web?")
	_, err = viewer.GetExplanation(c.ctx, &v1.GetExplanationRequest{Name: "web", Node: "n2"})
	wantCode(t, err, codes.NotFound, "node n2 does not exist")
	_, err = viewer.GetExplanation(c.ctx, &v1.GetExplanationRequest{})
	wantCode(t, err, codes.InvalidArgument)
}

func TestExplainWorkloadWithoutApplyingIt(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", idle)
	running := c.create(op, workload("web", cpuOf("1")))
	c.running(running.GetMetadata().GetUid(), 1)
	before := c.Store.Snapshot().Workload(running.GetMetadata().GetUid()).GetMetadata().GetVersion()
	explain := func(w *v1.Workload) *v1.Explanation {
		t.Helper()
		e, err := c.as(core.RoleViewer).ExplainWorkload(c.ctx, &v1.ExplainWorkloadRequest{Workload: w})
		must(t, err)
		return e
	}
	fresh := explain(workload("api", cpuOf("2"), replicasOf(2)))
	if fresh.GetPhase() != "" || fresh.GetSummary() != "1 of 2 replicas would have a node; 1 has no place" ||
		fresh.GetHelp()[0] != "1 node would fit after 1 CPU is freed; the largest free is 1 on n1" {
		t.Errorf("a new one is explained by %v", fresh)
	}
	// It fits in place of the running replica.
	larger := explain(workload("web", cpuOf("4")))
	if larger.GetPhase() != "running" || larger.GetTakingCount() != 1 || !strings.HasPrefix(larger.GetAbout(), "the successor of web-") {
		t.Errorf("an update is explained by %v", larger)
	}
	if same := explain(workload("web", cpuOf("1"))); same.GetAbout() != "one more replica" || same.GetRevision() != 1 {
		t.Errorf("what is the same is explained by %v", same)
	}
	if snap := c.Store.Snapshot(); snap.WorkloadByName("default", "api") != nil || snap.WorkloadByName("default", "web").GetMetadata().GetVersion() != before {
		t.Error("asking has changed something")
	}
	_, err := op.ExplainWorkload(c.ctx, &v1.ExplainWorkloadRequest{Workload: workload("api", imageOf("nope:1"))})
	wantCode(t, err, codes.FailedPrecondition, "nope:1")
	_, err = op.ExplainWorkload(c.ctx, &v1.ExplainWorkloadRequest{})
	wantCode(t, err, codes.InvalidArgument, "workload")
}

func TestExplainOverHTTP(t *testing.T) {
	c := newCluster(t)
	header := []string{"Authorization", "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleViewer})}
	_, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.Count(state.KindReplica) == 1 })
	got := &v1.Explanation{}
	response, body := c.request(nil, http.MethodGet, "/v1/namespaces/default/workloads/web:explain?all=true", "", header...)
	if response.StatusCode != http.StatusOK || protojson.Unmarshal([]byte(body), got) != nil || got.GetHelp()[0] != "a first node: the cluster has none yet" {
		t.Errorf("%s %s", response.Status, body)
	}
	request, err := protojson.Marshal(&v1.ExplainWorkloadRequest{Workload: workload("api")})
	must(t, err)
	response, body = c.request(nil, http.MethodPost, "/v1/workloads:explain", string(request), header...)
	if response.StatusCode != http.StatusOK || protojson.Unmarshal([]byte(body), got) != nil || got.GetName() != "api" {
		t.Errorf("%s %s", response.Status, body)
	}
}

// One explanation is computed at a time, and a waiting caller can leave.
func TestOneExplanationRunsAtATime(t *testing.T) {
	c := newCluster(t)
	web, err := c.as(core.RoleOperator).CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	s := newExplainService(newNodes(c.Server))
	s.turn <- struct{}{}
	ctx, cancel := context.WithCancel(c.ctx)
	cancel()
	if _, err := s.GetExplanation(ctx, &v1.GetExplanationRequest{Name: "web"}); err == nil {
		t.Error("two explanations are worked out at once")
	}
	<-s.turn
	snap := c.Store.Snapshot()
	if _, err := s.explain(c.ctx, snap, web, "", false); err != nil || len(s.turn) != 0 {
		t.Errorf("after that: %v", err)
	}
}

// brokenPlacement panics.
type brokenPlacement struct{ replicas.Placement }

func (brokenPlacement) Explain(*state.Snapshot, string) []*v1.NodeReason {
	panic("a bug in the explanation")
}

func TestPanicOfOneCallEndsNothingElse(t *testing.T) {
	c := newCluster(t, func(o *Options) { o.Placement = brokenPlacement{} })
	op := c.as(core.RoleOperator)
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web")})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.Count(state.KindReplica) == 1 })
	_, err = op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.Internal, "its log says more", "(request ")
	if strings.Contains(status.Convert(err).Message(), "a bug in the explanation") {
		t.Error("the caller sees what only the log should contain")
	}
	if !strings.Contains(c.log.String(), "a bug in the explanation") {
		t.Error("the log does not say what happened")
	}
	_, err = op.ListWorkloads(c.ctx, &v1.ListWorkloadsRequest{})
	must(t, err)
}
