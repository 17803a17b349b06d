package server

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func labelled(key, value string) func(*v1.Workload) {
	return func(w *v1.Workload) { w.Metadata.Labels = map[string]string{key: value} }
}

func cpuOf(amount string) func(*v1.Workload) {
	return func(w *v1.Workload) {
		w.Spec.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Cpu: amount}}
	}
}

func asking(workloads ...*v1.Workload) *v1.PlanRequest {
	request := &v1.PlanRequest{}
	for _, w := range workloads {
		request.Objects = append(request.Objects, manifests(w)...)
	}
	return request
}

// plan makes a plan, which must succeed.
func (c *cluster) plan(u *user, request *v1.PlanRequest) *v1.Plan {
	c.t.Helper()
	plan, err := u.MakePlan(c.ctx, request)
	must(c.t, err)
	return plan
}

// applyPlan makes a plan and applies it.
func (c *cluster) applyPlan(u *user, request *v1.PlanRequest) *v1.ApplyPlanResponse {
	c.t.Helper()
	answer, err := u.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: request, Fingerprint: c.plan(u, request).GetFingerprint()})
	must(c.t, err)
	return answer
}

// summary lists a plan in short: actions, fields, and steps other than keeping.
func planLines(p *v1.Plan) (lines []string) {
	for _, c := range p.GetChanges() {
		lines = append(lines, c.GetAction()+" "+c.GetName())
		for _, f := range c.GetFields() {
			lines = append(lines, fmt.Sprintf("%s: %s > %s", f.GetPath(), f.GetBefore(), f.GetAfter()))
		}
		for _, r := range c.GetReplicas() {
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s>%s", r.GetAction(), r.GetFromNode(), r.GetToNode())))
		}
		if c.GetUnplaced() > 0 {
			lines = append(lines, fmt.Sprintf("%d unplaced: %s", c.GetUnplaced(), c.GetUnplacedReasons()[0].GetReason()))
		}
	}
	return lines
}

func wantPlan(t *testing.T, p *v1.Plan, lines ...string) {
	t.Helper()
	if got := planLines(p); !slices.Equal(got, lines) {
		t.Errorf("the plan says\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

func TestPlanShowsChangesAndMakesNone(t *testing.T) {
	c := newCluster(t)
	op, viewer := c.as(core.RoleOperator), c.as(core.RoleViewer)
	c.work("n1", idle)
	digest := c.push("hello:1")
	web := func(change ...func(*v1.Workload)) *v1.PlanRequest {
		return asking(workload("web", append([]func(*v1.Workload){imageOf("hello:1"), cpuOf("0.5")}, change...)...))
	}
	c.until(func(snap *state.Snapshot) bool { return snap.NodeByName("n1").GetStatus().GetState() == "ready" })
	before := c.Store.Snapshot().Index()
	plan := c.plan(viewer, web())
	wantPlan(t, plan, "create web", "spec.image:  > hello:1", "spec.replicas:  > 1", "spec.resources.limits.cpu:  > 500m",
		"spec.network:  > none", "create >n1")
	if got := plan.GetChanges()[0].GetImage(); got != image.ClusterRegistry+"/hello@"+digest {
		t.Errorf("the plan pins %s", got)
	}
	if again := c.plan(op, web()); !proto.Equal(plan, again) {
		t.Errorf("the same plan again is another one: %v", again)
	}
	if after := c.Store.Snapshot(); after.Index() != before || after.Count(state.KindWorkload) != 0 {
		t.Error("the plan has changed something")
	}

	answer := c.applyPlan(op, web())
	if w := spec.WorkloadsIn(answer.GetObjects())[0]; w.GetMetadata().GetName() != "web" || w.GetStatus().GetRevision() != 1 {
		t.Errorf("applied: %v", answer)
	}
	uid := spec.WorkloadsIn(answer.GetObjects())[0].GetMetadata().GetUid()
	c.running(uid, 1)
	wantPlan(t, c.plan(op, web(cpuOf("500m"))), "unchanged web", "keep n1>n1") // the same value in another notation
	wantPlan(t, c.plan(op, web(replicasOf(2), labelled("app", "web"))), "update web",
		"metadata.labels[app]:  > web", "spec.replicas: 1 > 2", "keep n1>n1", "create >n1")
	wantPlan(t, c.plan(op, web(func(w *v1.Workload) { w.Spec.Env = map[string]string{"LOG_LEVEL": "debug"} })), "update web",
		"spec.env[LOG_LEVEL]:  > debug", "replace n1>n1")

	// The tag moves: the same name means another image.
	moved := c.push("hello:1")
	wantPlan(t, c.plan(op, web()), "update web",
		"spec.image: "+image.ClusterRegistry+"/hello@"+digest+" > "+image.ClusterRegistry+"/hello@"+moved, "replace n1>n1")
}

func TestWorkloadsOfOnePlanCompeteForTheSameRoom(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.work("n1", idle)
	c.until(func(snap *state.Snapshot) bool { return snap.NodeByName("n1").GetStatus().GetState() == "ready" })
	request := asking(workload("a", cpuOf("3")), workload("b", cpuOf("3"))) // the node has 4
	plan := c.plan(op, request)
	changes := plan.GetChanges()
	if changes[0].GetUnplaced() != 0 || changes[1].GetUnplaced() != 1 || changes[1].GetUnplacedReasons()[0].GetNode() != "n1" ||
		!strings.Contains(changes[1].GetUnplacedReasons()[0].GetReason(), "needs 3 CPU, 1 of 4 free") {
		t.Errorf("planned %v", planLines(plan))
	}
	answer := c.applyPlan(op, request)
	c.running(spec.WorkloadsIn(answer.GetObjects())[0].GetMetadata().GetUid(), 1)

	// The same plan shows what makes room for it.
	alone := asking(workload("b", cpuOf("3"), labelled("app", "x")))
	alone.Prune = "app=x"
	c.applyPlan(op, asking(workload("a", cpuOf("3"), labelled("app", "x"))))
	wantPlan(t, c.plan(op, alone), "update b", "metadata.labels[app]:  > x", "create >n1", "delete a", "stop n1>")
}

// The loop places replicas where the plan said.
func TestApplyingAPlanDoesWhatItShowed(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	for _, name := range []string{"n1", "n2", "n3"} {
		c.work(name, idle)
		c.until(func(snap *state.Snapshot) bool { return snap.NodeByName(name).GetStatus().GetState() == "ready" })
	}
	request := asking(workload("a", replicasOf(4), cpuOf("1")), workload("b", replicasOf(2), cpuOf("2")), workload("c", replicasOf(3), cpuOf("1500m")))
	answer := c.applyPlan(op, request)
	for i, change := range answer.GetPlan().GetChanges() {
		var want, got []string
		for _, step := range change.GetReplicas() {
			want = append(want, step.GetToNode())
		}
		for _, r := range c.running(spec.WorkloadsIn(answer.GetObjects())[i].GetMetadata().GetUid(), len(want)) {
			got = append(got, r.GetSpec().GetNode())
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) || len(want)+int(change.GetUnplaced()) != int(spec.WorkloadsIn(answer.GetObjects())[i].GetSpec().GetReplicas()) {
			t.Errorf("%s is on %v, and the plan showed %v with %d unplaced", change.GetName(), got, want, change.GetUnplaced())
		}
	}
}

// What cannot work is refused before anything changes. What only lacks room for now is a warning of the plan.
func TestPlanChecksWhatCannotWork(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleAdmin)
	c.work("n1", idle)
	c.until(func(snap *state.Snapshot) bool { return snap.NodeByName("n1").GetStatus().GetState() == "ready" })
	publishing := func(w *v1.Workload) {
		w.Spec.Network, w.Spec.Ports = "node", []*v1.Port{{Port: 80, Publish: 8080}}
	}
	c.applyPlan(op, &v1.PlanRequest{Objects: manifests(namespace("default", &v1.Quota{Cpu: "8", Replicas: new(int64(3))}), workload("web", publishing))})
	before := c.Store.Snapshot().Count(state.KindWorkload)
	for _, test := range []struct {
		w    *v1.Workload
		code codes.Code
		want string
	}{
		{workload("new", func(w *v1.Workload) { w.Spec.Image = "missing:1" }), codes.FailedPrecondition, "missing:1"},
		{workload("new", publishing), codes.InvalidArgument, "8080/tcp is published by workload web"},
		{workload("new", cpuOf("9")), codes.FailedPrecondition, "workload new can never run: one replica alone exceeds the quota of namespace default: needs 9 CPU, 8 of 8 left"},
	} {
		_, err := op.MakePlan(c.ctx, asking(workload("other"), test.w))
		wantCode(t, err, test.code, test.want)
	}
	for want, w := range map[string]*v1.Workload{
		"the quota of namespace default is used up": workload("new", replicasOf(3), cpuOf("100m")),
		"needs 5 CPU": workload("new", cpuOf("5")),
	} {
		change := c.plan(op, asking(w)).GetChanges()[0]
		if got := change.GetQuota() + fmt.Sprint(change.GetUnplacedReasons()); change.GetUnplaced() == 0 || !strings.Contains(got, want) {
			t.Errorf("the plan says %v", change)
		}
	}
	if now := c.Store.Snapshot().Count(state.KindWorkload); now != before {
		t.Errorf("there are %d workloads, and there were %d", now, before)
	}
}

func TestApplyPlanIsAllOrNothing(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleAdmin)
	for _, name := range []string{"old", "kept", "other"} {
		c.applyPlan(op, asking(workload(name, labelled("app", "shop"), replicasOf(0))))
	}
	c.applyPlan(op, asking(workload("stranger", labelled("app", "bank"), replicasOf(0))))
	elsewhere := workload("old", labelled("app", "shop"), replicasOf(0))
	elsewhere.Metadata.Namespace = "elsewhere"
	c.applyPlan(op, asking(elsewhere))

	request := asking(workload("new", replicasOf(0)), workload("kept", labelled("app", "shop"), replicasOf(0)))
	request.Prune = "app=shop"
	plan := c.plan(op, request)
	wantPlan(t, plan, "create new", "spec.image:  > example.com/app:1", "spec.replicas:  > 0", "spec.network:  > none",
		"unchanged kept", "delete old", "delete other")

	// Somebody changes one of them: none is changed.
	_, err := op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "kept", Replicas: proto.Int32(2)})
	must(t, err)
	_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
	wantCode(t, err, codes.Aborted, "the plan is outdated", "workload default/kept was changed from version", "make the plan again")
	snap := c.Store.Snapshot()
	if snap.WorkloadByName("default", "new") != nil || snap.WorkloadByName("default", "old").GetMetadata().GetDeleteTime() != nil {
		t.Error("a refused plan was half done")
	}

	// The loop has created its two replicas by then, so a plan from before that is refused too.
	c.until(func(snap *state.Snapshot) bool { return snap.Count(state.KindReplica) == 2 })
	answer := c.applyPlan(op, request)
	var names []string
	for _, w := range spec.WorkloadsIn(answer.GetObjects()) {
		names = append(names, w.GetMetadata().GetName())
	}
	if !slices.Equal(names, []string{"new", "kept"}) || answer.GetPlan().GetChanges()[2].GetAction() != "delete" {
		t.Errorf("applied %v", answer)
	}
	c.until(func(snap *state.Snapshot) bool {
		return snap.WorkloadByName("default", "old") == nil && snap.WorkloadByName("default", "other") == nil
	})
	snap = c.Store.Snapshot()
	if snap.WorkloadByName("default", "stranger") == nil || snap.WorkloadByName("elsewhere", "old") == nil {
		t.Error("prune deleted more than the selector matches")
	}
	versions := map[uint64]bool{}
	for _, w := range spec.WorkloadsIn(answer.GetObjects()) {
		versions[w.GetMetadata().GetVersion()] = true
	}
	if len(versions) != 1 {
		t.Errorf("the plan took several transactions: versions %v", versions)
	}
}

// Many callers change the same workloads at once. Each plan is applied whole or refused, and never on top of a change
// that it has not seen.
func TestConcurrentPlansDoNotMix(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	colour := func(name, value string) *v1.Workload {
		return workload(name, replicasOf(0), func(w *v1.Workload) { w.Spec.Env = map[string]string{"COLOUR": value} })
	}
	c.applyPlan(op, asking(colour("a", "none"), colour("b", "none")))
	var callers sync.WaitGroup
	var done atomic.Int64
	for i := range 8 {
		callers.Go(func() {
			request := asking(colour("a", fmt.Sprint(i)), colour("b", fmt.Sprint(i)))
			for range 5 {
				plan, err := op.MakePlan(c.ctx, request)
				check(t, err)
				_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
				switch status.Code(err) {
				case codes.OK:
					if changes(plan) {
						done.Add(1)
					}
				case codes.Aborted:
				default:
					t.Errorf("refused by %v", err)
				}
				snap := c.Store.Snapshot()
				if a, b := snap.WorkloadByName("default", "a").GetSpec().GetEnv()["COLOUR"], snap.WorkloadByName("default", "b").GetSpec().GetEnv()["COLOUR"]; a != b {
					t.Errorf("a is %s and b is %s", a, b)
				}
			}
		})
	}
	callers.Wait()
	if made := c.Store.Snapshot().WorkloadByName("default", "a").GetStatus().GetRevision(); made != uint64(done.Load())+1 {
		t.Errorf("%d plans were carried out, and there are %d revisions", done.Load(), made)
	}
}

func changes(p *v1.Plan) bool {
	return slices.ContainsFunc(p.GetChanges(), func(c *v1.PlanChange) bool { return c.GetAction() != spec.ActionUnchanged })
}

func TestRefusedPlanSaysWhatHasChanged(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	node := c.work("n1", idle)
	c.until(func(snap *state.Snapshot) bool { return snap.NodeByName("n1").GetStatus().GetState() == "ready" })
	refused := func(request *v1.PlanRequest, meanwhile func(), words ...string) {
		t.Helper()
		plan := c.plan(op, request)
		meanwhile()
		_, err := op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()})
		wantCode(t, err, codes.Aborted, append(words, "make the plan again and review it")...)
	}
	create := func(w *v1.Workload) func() { return func() { c.create(op, w) } }
	refused(asking(workload("web")), create(workload("web", replicasOf(0))), "workload default/web was created by somebody else")
	c.push("hello:1")
	refused(asking(workload("hi", imageOf("hello:1"))), func() { c.push("hello:1") }, "the image of workload default/hi is another one now")
	refused(asking(workload("big", cpuOf("3"))), create(workload("bigger", cpuOf("2"))), "room is elsewhere")
	refused(asking(workload("small", cpuOf("1"))), func() {
		c.change(func(snap *state.Snapshot, b *state.Batch) {
			n := proto.CloneOf(snap.Node(node.uid()))
			n.Status.Capacity.Cpu = "2" // all of it is taken
			b.Update(n, n.GetMetadata().GetVersion())
		})
	}, "node n1 has changed")
	_, err := op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: asking(workload("x")), Fingerprint: "nobody knows it"})
	wantCode(t, err, codes.Aborted, "something that it rests on has changed")
}

func TestApplyPlanIsIdempotentByKey(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.applyPlan(op, asking(workload("old", labelled("app", "x"), replicasOf(0))))
	request := asking(workload("web", replicasOf(0)))
	request.Prune = "app=x"
	call := &v1.ApplyPlanRequest{Request: request, Fingerprint: c.plan(op, request).GetFingerprint(), IdempotencyKey: "k"}
	first, err := op.ApplyPlan(c.ctx, call)
	must(t, err)
	again, err := op.ApplyPlan(c.ctx, call)
	must(t, err)
	if !proto.Equal(spec.WorkloadsIn(first.GetObjects())[0], spec.WorkloadsIn(again.GetObjects())[0]) || len(spec.WorkloadsIn(again.GetObjects())) != 1 {
		t.Errorf("the repeated call answered %v, want %v", again, first)
	}
	for i, change := range again.GetPlan().GetChanges() {
		if was := first.GetPlan().GetChanges()[i]; change.GetAction() != was.GetAction() || change.GetName() != was.GetName() {
			t.Errorf("the repeated call did %v, the first one %v", change, was)
		}
	}
	other := proto.CloneOf(call)
	other.Fingerprint = "x"
	_, err = op.ApplyPlan(c.ctx, other)
	wantCode(t, err, codes.InvalidArgument, "different request")
}

// manyLarge returns workloads that fit into a request, but not into one transaction.
func manyLarge() (all []*v1.Workload) {
	for i := range 5 {
		all = append(all, workload(fmt.Sprint("large-", i), func(w *v1.Workload) { w.Spec.Args = []string{strings.Repeat("x", 1<<20-1000)} }))
	}
	return all
}

func TestInvalidPlansAreRefused(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.applyPlan(op, asking(workload("web", replicasOf(0))))
	stored := func() string {
		snap := c.Store.Snapshot()
		return fmt.Sprint(snap.Count(state.KindWorkload), snap.WorkloadByName("default", "web"))
	}
	before := stored()
	versioned := workload("web")
	versioned.Metadata.Version = 1
	gone := workload("nope")
	gone.Metadata.Version = 1
	pruning := func(selector string) *v1.PlanRequest { return &v1.PlanRequest{Prune: selector} }
	for name, test := range map[string]struct {
		request *v1.PlanRequest
		code    codes.Code
		words   string
	}{
		"twice":               {asking(workload("a"), workload("a")), codes.InvalidArgument, "workload default/a is given twice"},
		"negative replicas":   {asking(workload("a"), workload("b", replicasOf(-1))), codes.InvalidArgument, "objects[1].workload.spec.replicas: must be between 0 and 100000"},
		"too little memory":   {asking(workload("a", func(w *v1.Workload) { w.Spec.Resources = &v1.Resources{Limits: &v1.ResourceAmounts{Memory: "1Ki"}} })), codes.InvalidArgument, "objects[0].workload.spec.resources.limits.memory: a memory limit of 1Ki is too small"},
		"a wrong unit":        {asking(workload("a", cpuOf("5 apples"))), codes.InvalidArgument, "spec.resources.limits.cpu"},
		"a long name":         {asking(workload(strings.Repeat("a", 64))), codes.InvalidArgument, "metadata.name"},
		"no image":            {asking(workload("a"), workload("b", imageOf("nope:1"))), codes.FailedPrecondition, "image nope:1 is not in the cluster's registry"},
		"an old version":      {asking(versioned), codes.Aborted, "version"},
		"a vanished one":      {asking(gone), codes.Aborted, "no longer exists"},
		"blank selector":      {pruning(" "), codes.InvalidArgument, "name a label that must be there"},
		"only what is not":    {pruning("!app,tier!=x"), codes.InvalidArgument, "name a label that must be there"},
		"not a selector":      {pruning("a=b=c d"), codes.InvalidArgument, "is not a label selector"},
		"too much together":   {asking(manyLarge()...), codes.InvalidArgument, "divide it"},
		"arguments too large": {asking(workload("a", func(w *v1.Workload) { w.Spec.Args = []string{strings.Repeat("x", 2<<20)} })), codes.InvalidArgument, "is too large"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := op.MakePlan(c.ctx, test.request)
			wantCode(t, err, test.code, test.words)
			_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: test.request, Fingerprint: "x"})
			wantCode(t, err, test.code)
		})
	}
	if after := stored(); after != before {
		t.Errorf("a refused plan has changed something: %s became %s", before, after)
	}
	_, err := c.as(core.RoleViewer).ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: asking(), Fingerprint: "x"})
	wantCode(t, err, codes.PermissionDenied)
	if plan := c.plan(op, asking()); len(plan.GetChanges()) != 0 {
		t.Errorf("a plan of nothing: %v", plan)
	}
}

func TestPlanOverHTTP(t *testing.T) {
	c := newCluster(t)
	header := []string{"Authorization", "Bearer " + c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleOperator})}
	request, err := protojson.Marshal(asking(workload("web", replicasOf(0))))
	must(t, err)
	response, body := c.request(nil, http.MethodPost, "/v1/plan", string(request), header...)
	plan := &v1.Plan{}
	if response.StatusCode != http.StatusOK || protojson.Unmarshal([]byte(body), plan) != nil || plan.GetChanges()[0].GetAction() != "create" {
		t.Fatalf("%s %s", response.Status, body)
	}
	apply := func(fingerprint string) (*http.Response, string) {
		return c.request(nil, http.MethodPost, "/v1/plan:apply", fmt.Sprintf(`{"request":%s,"fingerprint":%q}`, request, fingerprint), header...)
	}
	if response, body = apply("x"); response.StatusCode != http.StatusConflict || !strings.Contains(body, "the plan is outdated") {
		t.Errorf("%s %s", response.Status, body)
	}
	if response, body = apply(plan.GetFingerprint()); response.StatusCode != http.StatusOK || c.Store.Snapshot().WorkloadByName("default", "web") == nil {
		t.Errorf("%s %s", response.Status, body)
	}
	huge := bytes.Repeat([]byte("x"), 10<<20)
	response, body = c.request(nil, http.MethodPost, "/v1/plan", `{"workloads":[{"spec":{"image":"`+string(huge)+`"}}]}`, header...)
	if response.StatusCode < 400 || response.StatusCode >= 500 {
		t.Errorf("a request of 10 MB: %s %.200s", response.Status, body)
	}
}
