package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"

	"github.com/cloudless/cloudless/internal/server/core"
)

func (u *user) namespaces() v1.NamespaceServiceClient { return v1.NewNamespaceServiceClient(u.conn) }

func namespace(name string, quota *v1.Quota) *v1.Namespace {
	return &v1.Namespace{Metadata: &v1.Metadata{Name: name}, Spec: &v1.NamespaceSpec{Quota: quota}}
}

func inNamespace(name string) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Metadata.Namespace = name }
}

// A namespace exists from its first workload on, or from its creation.
func TestNamespacesExistImplicitlyOrByCreation(t *testing.T) {
	c := newCluster(t)
	admin, viewer := c.as(core.RoleAdmin), c.as(core.RoleViewer)
	spaces := admin.namespaces()
	listed := func(page *v1.Page) (names []string, next string) {
		t.Helper()
		answer, err := viewer.namespaces().ListNamespaces(c.ctx, &v1.ListNamespacesRequest{Page: page})
		must(t, err)
		for _, n := range answer.GetItems() {
			names = append(names, n.GetMetadata().GetName())
		}
		return names, answer.GetNext()
	}
	if got, _ := listed(nil); !slices.Equal(got, []string{"default"}) {
		t.Errorf("in the beginning there is %v", got)
	}
	_, err := spaces.GetNamespace(c.ctx, &v1.GetNamespaceRequest{Name: "shop"})
	wantCode(t, err, codes.NotFound, "namespace shop does not exist", "cloudless namespace create shop")
	_, err = admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", inNamespace("shop"), replicasOf(2))})
	must(t, err)
	implicit, err := spaces.GetNamespace(c.ctx, &v1.GetNamespaceRequest{Name: "shop"})
	must(t, err)
	if implicit.GetMetadata().GetUid() != "" || implicit.GetStatus().GetWorkloads() != 1 || implicit.GetKind() != "Namespace" {
		t.Errorf("a namespace that was not created is %v", implicit)
	}
	made, err := spaces.CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: namespace("lab", &v1.Quota{Cpu: "1.5", Gpu: new(int64(0))})})
	must(t, err)
	if q := made.GetSpec().GetQuota(); q.GetCpu() != "1500m" || q.Gpu == nil || q.Replicas != nil || made.GetMetadata().GetUid() == "" || made.GetStatus().GetCpu() != "0" {
		t.Errorf("made is %v", made)
	}
	if got, _ := listed(nil); !slices.Equal(got, []string{"default", "lab", "shop"}) {
		t.Errorf("there is %v", got)
	}
	first, next := listed(&v1.Page{Size: 2})
	rest, end := listed(&v1.Page{Size: 2, Token: next})
	if !slices.Equal(append(first, rest...), []string{"default", "lab", "shop"}) || end != "" {
		t.Errorf("by pages there is %v and %v", first, rest)
	}
	_, err = spaces.CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: namespace("lab", nil)})
	wantCode(t, err, codes.AlreadyExists, "namespace lab exists already; change it with: cloudless namespace set lab")
	_, err = spaces.GetNamespace(c.ctx, &v1.GetNamespaceRequest{Name: "labs"})
	wantCode(t, err, codes.NotFound, "did you mean lab?")

	for field, wrong := range map[string]*v1.Namespace{
		"metadata.name": namespace("", nil), "spec.quota.cpu": namespace("x", &v1.Quota{Cpu: "much"}),
		"spec.quota.replicas": namespace("x", &v1.Quota{Replicas: new(int64(-1))}), "spec.quota.disk": namespace("x", &v1.Quota{Disk: "9999999999999999P"}),
		"metadata.namespace": {Metadata: &v1.Metadata{Name: "x", Namespace: "y"}},
	} {
		_, err := spaces.CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: wrong})
		wantCode(t, err, codes.InvalidArgument, field)
	}
}

func TestNamespacesAreChangedByVersionAndKey(t *testing.T) {
	c := newCluster(t)
	spaces := c.as(core.RoleAdmin).namespaces()
	request := &v1.CreateNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "4"}), IdempotencyKey: "k"}
	made, err := spaces.CreateNamespace(c.ctx, request)
	must(t, err)
	again, err := spaces.CreateNamespace(c.ctx, request)
	must(t, err)
	if !proto.Equal(made, again) {
		t.Errorf("the same call gives %v, not %v", again, made)
	}
	_, err = spaces.CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: namespace("other", nil), IdempotencyKey: "k"})
	wantCode(t, err, codes.InvalidArgument, "idempotency key was used for a different request")

	apply := &v1.ApplyNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "2"}), IdempotencyKey: "a"}
	applied, err := spaces.ApplyNamespace(c.ctx, apply)
	must(t, err)
	if applied.GetResult() != "updated" || applied.GetNamespace().GetMetadata().GetVersion() <= made.GetMetadata().GetVersion() {
		t.Errorf("applied: %v", applied)
	}
	if repeated, err := spaces.ApplyNamespace(c.ctx, apply); err != nil || !proto.Equal(applied, repeated) {
		t.Errorf("applied again by its key: %v, %v", repeated, err)
	}
	same, err := spaces.ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "2000m"})})
	must(t, err)
	if same.GetResult() != "unchanged" || same.GetNamespace().GetMetadata().GetVersion() != applied.GetNamespace().GetMetadata().GetVersion() {
		t.Errorf("the same in other words: %v", same)
	}

	_, err = spaces.UpdateNamespace(c.ctx, &v1.UpdateNamespaceRequest{Namespace: namespace("shop", nil)})
	wantCode(t, err, codes.InvalidArgument, "metadata.version", "is missing")
	old := proto.CloneOf(made)
	old.Spec.Quota = &v1.Quota{Replicas: new(int64(7))}
	_, err = spaces.UpdateNamespace(c.ctx, &v1.UpdateNamespaceRequest{Namespace: old})
	wantCode(t, err, codes.Aborted, "shop")
	current := proto.CloneOf(applied.GetNamespace())
	current.Metadata.Labels = map[string]string{"team": "shop"}
	updated, err := spaces.UpdateNamespace(c.ctx, &v1.UpdateNamespaceRequest{Namespace: current})
	must(t, err)
	if updated.GetMetadata().GetLabels()["team"] != "shop" || updated.GetSpec().GetQuota().GetCpu() != "2" {
		t.Errorf("updated is %v", updated)
	}
	_, err = spaces.DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "shop", Version: made.GetMetadata().GetVersion()})
	wantCode(t, err, codes.Aborted)
	_, err = spaces.DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "shop"})
	must(t, err)
	_, err = spaces.DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "shop"})
	wantCode(t, err, codes.NotFound)
	_, err = spaces.ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: updated})
	wantCode(t, err, codes.Aborted, "no longer exists")
	_, err = spaces.DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "default"})
	wantCode(t, err, codes.FailedPrecondition, "namespace default is always there", "--unlimited")

	events, err := c.as(core.RoleViewer).ListEvents(c.ctx, &v1.ListEventsRequest{Object: "shop"})
	must(t, err)
	var told []string
	for _, e := range events.GetItems() {
		told = append(told, e.GetSpec().GetReason()+" "+e.GetSpec().GetMessage())
	}
	if got := strings.Join(told, "\n"); !strings.Contains(got, "Created with a quota of cpu 4") || !strings.Contains(got, "Updated with a quota of cpu 2") || !strings.Contains(got, "Deleted") {
		t.Errorf("the events tell\n%s", got)
	}
}

// Pending replicas name the quota as the reason, and are placed when it is raised. A
// namespace with workloads cannot be deleted.
func TestPendingReplicasNameTheQuota(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	spaces := admin.namespaces()
	c.work("n1", idle)
	_, err := spaces.CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "1200m"})})
	must(t, err)
	made, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", inNamespace("shop"), cpuOf("500m"), replicasOf(3))})
	must(t, err)
	uid := made.GetMetadata().GetUid()
	c.running(uid, 2)
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOn("") {
			return r.GetStatus().GetReason() != ""
		}
		return false
	})
	got, err := admin.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Namespace: "shop", Name: "web"})
	must(t, err)
	const why = "the quota of namespace shop is used up: needs 500m CPU, 200m of 1200m left"
	if st := got.GetStatus(); st.GetQuota() != why || st.GetReason() != why || len(st.GetUnplaced()) != 0 || st.GetPending() != 1 {
		t.Errorf("the status is %v", st)
	}
	n, err := spaces.GetNamespace(c.ctx, &v1.GetNamespaceRequest{Name: "shop"})
	must(t, err)
	if st := n.GetStatus(); st.GetCpu() != "1" || st.GetReplicas() != 2 || st.GetPending() != 1 || len(st.GetOver()) != 0 {
		t.Errorf("it uses %v", st)
	}
	_, err = spaces.DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "shop"})
	wantCode(t, err, codes.FailedPrecondition, "namespace shop has 1 workload", "cloudless get workloads -n shop")
	_, err = spaces.ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "1500m"})})
	must(t, err)
	c.running(uid, 3)
	lower, err := spaces.ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "1", Replicas: new(int64(0))})})
	must(t, err)
	if over := strings.Join(lower.GetNamespace().GetStatus().GetOver(), ", "); over != "1500m CPU of 1, 3 replicas of 0" {
		t.Errorf("over by %q", over)
	}
	if node, err := admin.GetNode(c.ctx, &v1.GetNodeRequest{Name: "n1"}); err != nil || node.GetStatus().GetAllocatable().GetCpu() != "4" || node.GetStatus().GetRequested().GetCpu() != "1500m" {
		t.Errorf("the node may promise %v of %v, %v", node.GetStatus().GetAllocatable(), node.GetStatus().GetRequested(), err)
	}
}

func wantNamespaceChange(t *testing.T, watch grpc.ServerStreamingClient[v1.NamespaceChange], change, name string) *v1.Namespace {
	t.Helper()
	got, err := watch.Recv()
	must(t, err)
	if got.GetChange() != change || got.GetNamespace().GetMetadata().GetName() != name {
		t.Fatalf("the watch says %s %s, want %s %s", got.GetChange(), got.GetNamespace().GetMetadata().GetName(), change, name)
	}
	return got.GetNamespace()
}

func TestWatchNamespaces(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	watch, err := c.as(core.RoleViewer).namespaces().WatchNamespaces(c.ctx, &v1.WatchNamespacesRequest{})
	must(t, err)
	wantNamespaceChange(t, watch, changeAdded, "default")
	wantNamespaceChange(t, watch, changeSynced, "")
	made, err := admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", inNamespace("shop"), replicasOf(0))})
	must(t, err)
	if n := wantNamespaceChange(t, watch, changeAdded, "shop"); n.GetMetadata().GetUid() != "" || n.GetStatus().GetWorkloads() != 1 {
		t.Errorf("a first workload gives %v", n)
	}
	_, err = admin.namespaces().CreateNamespace(c.ctx, &v1.CreateNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Replicas: new(int64(1))})})
	must(t, err)
	if n := wantNamespaceChange(t, watch, changeChanged, "shop"); n.GetSpec().GetQuota().GetReplicas() != 1 {
		t.Errorf("a quota gives %v", n)
	}
	_, err = admin.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Namespace: "shop", Name: "web", Replicas: proto.Int32(1)})
	must(t, err)
	if n := wantNamespaceChange(t, watch, changeChanged, "shop"); n.GetStatus().GetPending() != 1 {
		t.Errorf("a replica that waits gives %v", n)
	}
	_, err = admin.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Namespace: "shop", Name: "web"})
	must(t, err)
	c.until(func(snap *state.Snapshot) bool { return snap.Workload(made.GetMetadata().GetUid()) == nil })
	_, err = admin.namespaces().DeleteNamespace(c.ctx, &v1.DeleteNamespaceRequest{Name: "shop"})
	must(t, err)
	for {
		got, err := watch.Recv()
		must(t, err)
		if got.GetChange() == changeRemoved {
			break
		}
	}
}

// Namespaces are part of a plan: of what it shows, of what it depends on and of its
// transaction.
func TestPlanWithNamespaces(t *testing.T) {
	c := newCluster(t)
	admin, op := c.as(core.RoleAdmin), c.as(core.RoleOperator)
	c.work("n1", idle)
	c.until(func(snap *state.Snapshot) bool { return snap.NodeByName("n1").GetStatus().GetState() == "ready" })
	asking := func(q *v1.Quota, replicas int32) *v1.PlanRequest {
		return &v1.PlanRequest{
			Objects: manifests(workload("web", inNamespace("shop"), replicasOf(replicas)), namespace("shop", q)),
		}
	}
	three := asking(&v1.Quota{Replicas: new(int64(2))}, 3)
	plan := c.plan(op, three)
	change := plan.GetChanges()[1]
	if n := plan.GetChanges()[0]; n.GetAction() != spec.ActionCreate || n.GetVersion() != 0 || fmt.Sprint(n.GetFields()[0].GetPath(), n.GetFields()[0].GetAfter()) != "spec.quota.replicas2" {
		t.Errorf("planned %v", n)
	}
	if change.GetUnplaced() != 1 || len(change.GetReplicas()) != 2 || change.GetQuota() != "the quota of namespace shop is used up: has 2 of at most 2 replicas" {
		t.Errorf("planned %v", change)
	}
	_, err := op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: three, Fingerprint: plan.GetFingerprint()})
	wantCode(t, err, codes.PermissionDenied, "may not create namespace shop", "role admin would be sufficient")
	if snap := c.Store.Snapshot(); snap.Count(state.KindNamespace)+snap.Count(state.KindWorkload) != 0 {
		t.Error("a refused plan has left something behind")
	}
	apply := &v1.ApplyPlanRequest{Request: three, Fingerprint: plan.GetFingerprint(), IdempotencyKey: "k"}
	answer, err := admin.ApplyPlan(c.ctx, apply)
	must(t, err)
	if answer.GetObjects()[0].GetNamespace().GetMetadata().GetUid() == "" || len(spec.WorkloadsIn(answer.GetObjects())) != 1 {
		t.Errorf("applied: %v", answer)
	}
	again, err := admin.ApplyPlan(c.ctx, apply)
	must(t, err)
	if again.GetPlan().GetChanges()[0].GetAction() != spec.ActionCreate || len(again.GetObjects()) != 2 {
		t.Errorf("applied again by its key: %v", again)
	}
	uid := spec.WorkloadsIn(answer.GetObjects())[0].GetMetadata().GetUid()
	c.running(uid, 2)
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOf(uid) {
			if r.GetStatus().GetPhase() == spec.PhasePending {
				return true
			}
		}
		return false
	})

	// A caller who may not change quotas may still apply a file that leaves them as they
	// are.
	same := c.plan(op, three)
	if same.GetChanges()[0].GetAction() != spec.ActionUnchanged {
		t.Errorf("the same again would %v", same)
	}
	scaled := c.applyPlan(op, asking(&v1.Quota{Replicas: new(int64(2))}, 4))
	if scaled.GetPlan().GetChanges()[1].GetAction() != spec.ActionUpdate {
		t.Errorf("scaled: %v", scaled)
	}

	// Raising the quota would place the pending replicas; a lower quota stops nothing.
	raise := &v1.PlanRequest{Objects: manifests(namespace("shop", &v1.Quota{Replicas: new(int64(3))}))}
	raised := c.plan(op, raise)
	if n := raised.GetChanges()[0]; n.GetAction() != spec.ActionUpdate || n.GetWoken() != 1 || len(n.GetOver()) != 0 || len(raised.GetChanges()) != 1 {
		t.Errorf("a higher quota would %v", raised)
	}
	lower := c.plan(op, &v1.PlanRequest{Objects: manifests(namespace("shop", &v1.Quota{Replicas: new(int64(1))}))})
	if n := lower.GetChanges()[0]; strings.Join(n.GetOver(), "") != "2 replicas of 1" || n.GetWoken() != 0 {
		t.Errorf("a lower quota would %v", lower)
	}
	_, err = admin.namespaces().ApplyNamespace(c.ctx, &v1.ApplyNamespaceRequest{Namespace: namespace("shop", &v1.Quota{Cpu: "9", Replicas: new(int64(2))})})
	must(t, err)
	_, err = admin.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: raise, Fingerprint: raised.GetFingerprint()})
	wantCode(t, err, codes.Aborted, "namespace shop was changed from version ")

	_, err = op.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(namespace("a", nil), namespace("a", nil))})
	wantCode(t, err, codes.InvalidArgument, "namespace a is given twice")
	_, err = op.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(namespace("a", &v1.Quota{Memory: "9999999999999999P"}))})
	wantCode(t, err, codes.InvalidArgument, "objects[0].namespace.spec.quota.memory")
}

func TestNamespacesOverHTTP(t *testing.T) {
	c := newCluster(t)
	token := "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleAdmin})
	call := func(method, path, body string, want int, words ...string) {
		t.Helper()
		response, text := c.request(nil, method, path, body, "Authorization", token)
		for _, word := range words {
			if !strings.Contains(strings.ReplaceAll(text, " ", ""), word) {
				t.Errorf("%s %s says %s, want %s", method, path, text, word)
			}
		}
		if response.StatusCode != want {
			t.Errorf("%s %s gives %s: %s", method, path, response.Status, text)
		}
	}
	call(http.MethodPost, "/v1/namespaces", `{"metadata":{"name":"shop"},"spec":{"quota":{"cpu":"4","gpu":0}}}`, 200, `"cpu":"4"`, `"gpu":"0"`)
	call(http.MethodPost, "/v1/namespaces:apply", `{"metadata":{"name":"shop"},"spec":{"quota":{"cpu":"2"}}}`, 200, `"result":"updated"`)
	call(http.MethodGet, "/v1/namespaces/shop", "", 200, `"quota":{"cpu":"2"}`)
	call(http.MethodPut, "/v1/namespaces/shop", `{"metadata":{"name":"shop","version":1},"spec":{}}`, 409)
	call(http.MethodGet, "/v1/namespaces", "", 200, `"name":"default"`, `"name":"shop"`)
	call(http.MethodDelete, "/v1/namespaces/shop", "", 200)
	call(http.MethodGet, "/v1/namespaces/shop", "", 404)
}
