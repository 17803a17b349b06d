package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// on waits until all replicas of a workload are on a node.
func (c *cluster) on(workloadUID, nodeUID string) {
	c.t.Helper()
	c.until(func(snap *state.Snapshot) bool {
		count, there := 0, 0
		for r := range snap.ReplicasOf(workloadUID) {
			count++
			if r.GetSpec().GetNodeUid() == nodeUID {
				there++
			}
		}
		return count > 0 && there == count
	})
}

// pendingFor waits until a replica of a workload has no node for a given reason.
func (c *cluster) pendingFor(workloadUID, reason string) {
	c.t.Helper()
	c.until(func(snap *state.Snapshot) bool {
		for r := range snap.ReplicasOf(workloadUID) {
			if r.GetSpec().GetNodeUid() == "" && strings.Contains(r.GetStatus().GetReason(), reason) {
				return true
			}
		}
		return false
	})
}

// An operator's change to a node takes effect at once, without polling: a new label and a
// removed taint let pending replicas in.
func TestLabelsAndTaintsWakePendingReplicas(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	n := c.work("n1", idle)
	ssd := c.submit(op, workload("ssd", func(w *v1.Workload) {
		w.Spec.Placement = &v1.Placement{Labels: map[string]string{"disk": "ssd"}}
	}))
	c.pendingFor(ssd.GetMetadata().GetUid(), "label disk=ssd is missing")
	tainted, err := op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{
		Name: "n1", Labels: map[string]string{"disk": "ssd"}, Taints: []*v1.Taint{{Key: "gpu", Value: "only", Effect: "NoSchedule"}},
	})
	must(t, err)
	if got := tainted.GetSpec().GetTaints(); len(got) != 1 || got[0].GetTime() == nil {
		t.Errorf("the taints are %v", got)
	}
	shown, err := op.GetWorkload(c.ctx, &v1.GetWorkloadRequest{Name: "ssd"})
	must(t, err)
	if reasons := shown.GetStatus().GetUnplaced(); len(reasons) != 1 || reasons[0].GetReason() != "has the taint gpu=only:NoSchedule, which is not tolerated" {
		t.Errorf("the reasons are %v", reasons)
	}
	tolerant := c.create(op, workload("tolerant", func(w *v1.Workload) {
		w.Spec.Placement = &v1.Placement{Tolerations: []*v1.Toleration{{Key: "gpu"}}}
	}))
	c.on(tolerant.GetMetadata().GetUid(), n.uid())
	_, err = op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "n1", RemoveTaints: []*v1.TaintName{{Key: "gpu"}}})
	must(t, err)
	c.on(ssd.GetMetadata().GetUid(), n.uid())

	// Running replicas stay, and a new session of the agent changes nothing.
	_, err = op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "n1", RemoveLabels: []string{"disk"}, Labels: map[string]string{"rack": "7"}})
	must(t, err)
	n.leave()
	assignments(t, n.connect(c.ctx))
	c.inState(n.uid(), "ready")
	got, err := op.GetNode(c.ctx, &v1.GetNodeRequest{Name: "n1"})
	must(t, err)
	if labels := got.GetMetadata().GetLabels(); len(labels) != 1 || labels["rack"] != "7" {
		t.Errorf("the labels are %v", labels)
	}
	c.on(ssd.GetMetadata().GetUid(), n.uid())
}

func TestUnchangedTaintsKeepTheirTime(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.join("n1")
	taint := func(value string, effects ...string) *v1.Node {
		t.Helper()
		request := &v1.UpdateNodeRequest{Name: "n1"}
		for _, effect := range effects {
			request.Taints = append(request.Taints, &v1.Taint{Key: "spot", Value: value, Effect: effect})
		}
		n, err := op.UpdateNode(c.ctx, request)
		must(t, err)
		return n
	}
	first := taint("a", "NoSchedule", "NoExecute")
	again := taint("a", "NoExecute")
	if again.GetMetadata().GetVersion() != first.GetMetadata().GetVersion() || !proto.Equal(first.GetSpec(), again.GetSpec()) {
		t.Errorf("the same taint has changed the node from %v to %v", first, again)
	}
	other := taint("b", "NoExecute")
	times := map[string]bool{}
	for _, one := range other.GetSpec().GetTaints() {
		times[one.GetEffect()] = one.GetTime().AsTime().Equal(first.GetSpec().GetTaints()[0].GetTime().AsTime())
	}
	if len(times) != 2 || !times["NoSchedule"] || times["NoExecute"] {
		t.Errorf("the taints are %v after %v", other.GetSpec().GetTaints(), first.GetSpec().GetTaints())
	}
	// A time in the request is ignored.
	lie := proto.CloneOf(first.GetSpec().GetTaints()[0])
	lie.Key, lie.Time.Seconds = "lie", 1
	told, err := op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "n1", Taints: []*v1.Taint{lie}, RemoveTaints: []*v1.TaintName{{Key: "spot", Effect: "NoExecute"}}})
	must(t, err)
	if got := told.GetSpec().GetTaints(); len(got) != 2 || got[0].GetKey() != "lie" || got[0].GetTime().GetSeconds() == 1 || got[1].GetEffect() != "NoSchedule" {
		t.Errorf("the taints are %v", got)
	}
}

func TestUpdateNodeRecordsChangesAndRefusesInvalidOnes(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.join("n1")
	update := func(request *v1.UpdateNodeRequest) error {
		request.Name = "n1"
		_, err := op.UpdateNode(c.ctx, request)
		return err
	}
	must(t, update(&v1.UpdateNodeRequest{Price: proto.Int64(40), Bandwidth: proto.String("1000M"), Labels: map[string]string{"zone": "a"}}))
	must(t, update(&v1.UpdateNodeRequest{Labels: map[string]string{"zone": "b"}, RemoveLabels: []string{"nothing"}}))
	must(t, update(&v1.UpdateNodeRequest{Labels: map[string]string{"zone": "b"}, Price: proto.Int64(40), Bandwidth: proto.String("1G")})) // no change, no event
	must(t, update(&v1.UpdateNodeRequest{Bandwidth: proto.String("")}))
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "n1"})
	must(t, err)
	var told []string
	for _, e := range events.GetItems() {
		if e.GetSpec().GetReason() == "Updated" {
			told = append([]string{e.GetSpec().GetMessage()}, told...) // oldest first
		}
	}
	want := "label zone=a; price 40 instead of 0; bandwidth 1G | label zone=b instead of a | bandwidth as the machine says"
	if got := strings.Join(told, " | "); got != want {
		t.Errorf("recorded %q, want %q", got, want)
	}

	for _, one := range []struct {
		request *v1.UpdateNodeRequest
		words   string
	}{
		{&v1.UpdateNodeRequest{Labels: map[string]string{"a b": "c"}}, "must be a label key"},
		{&v1.UpdateNodeRequest{Labels: map[string]string{"a": "b c"}}, "must be at most 63 letters"},
		{&v1.UpdateNodeRequest{Labels: map[string]string{"node.cloudless/arch": "z80"}}, "node.cloudless/arch is the cluster's own"},
		{&v1.UpdateNodeRequest{RemoveLabels: []string{"node.cloudless/arch"}}, "is the cluster's own and cannot be taken away"},
		{&v1.UpdateNodeRequest{Labels: map[string]string{"a": "b"}, RemoveLabels: []string{"a"}}, "is set by the same change"},
		{&v1.UpdateNodeRequest{Taints: []*v1.Taint{{Key: "a", Effect: "Never"}}}, "NoSchedule"},
		{&v1.UpdateNodeRequest{Taints: []*v1.Taint{{Key: "a=b", Effect: "NoSchedule"}}}, "must be a label key"},
		{&v1.UpdateNodeRequest{Taints: []*v1.Taint{{Key: "a", Effect: "NoExecute"}, {Key: "a", Value: "x", Effect: "NoExecute"}}}, "a:NoExecute is given twice"},
		{&v1.UpdateNodeRequest{Price: proto.Int64(-1)}, "price"},
		{&v1.UpdateNodeRequest{Bandwidth: proto.String("fast")}, "must be a number of bits per second such as 100M"},
		{&v1.UpdateNodeRequest{Bandwidth: proto.String("0")}, "must be more than 0"},
	} {
		wantCode(t, update(one.request), codes.InvalidArgument, one.words)
	}
	wantCode(t, update(&v1.UpdateNodeRequest{Version: 1, Price: proto.Int64(1)}), codes.Aborted, "n1")
	_, err = op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "n2"})
	wantCode(t, err, codes.NotFound, "node n2 does not exist")
	_, err = c.as(core.RoleViewer).UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "n1"})
	wantCode(t, err, codes.PermissionDenied, "viewer")
	many := map[string]string{}
	for i := range 64 {
		many[fmt.Sprint("l", i)] = ""
	}
	wantCode(t, update(&v1.UpdateNodeRequest{Labels: many}), codes.FailedPrecondition, "would have 65 labels", "cloudless node label n1 KEY-")

	response, body := c.request(nil, http.MethodPatch, "/v1/nodes/n1", `{"labels": {"by": "http"}}`, "Authorization", "Bearer "+op.token)
	if response.StatusCode != http.StatusOK || !strings.Contains(body, `"by"`) {
		t.Errorf("answered with %d: %s", response.StatusCode, body)
	}

	// Enrollment refuses in the same words.
	_, err = c.dial(nil, "").Enroll(c.ctx, &v1.EnrollRequest{
		Token: c.newTokenSecret(&v1.CreateTokenRequest{Role: core.RoleNode}), Csr: []byte("x"), Name: "n3", Labels: map[string]string{"node.cloudless/arch": "z80"},
	})
	wantCode(t, err, codes.InvalidArgument, "node.cloudless/arch is the cluster's own")
}

// A file holds the settings of operators. A plan shows which of them differ, and keeps what the cluster has written.
func TestPlansChangeTheSettingsOfNodes(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.join("n1")
	taint := &v1.Taint{Key: "spot", Effect: "NoSchedule"}
	before, err := op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "n1", Taints: []*v1.Taint{taint}, Labels: map[string]string{"old": "x"}})
	must(t, err)
	wanted := &v1.Node{
		Metadata: &v1.Metadata{Name: "n1", Labels: map[string]string{"disk": "ssd"}},
		Spec:     &v1.NodeSpec{Taints: []*v1.Taint{taint}, Price: 40, Bandwidth: "1000M", Availability: "cordoned", AvailabilityReason: "new disk"},
	}
	request := &v1.PlanRequest{Objects: manifests(wanted)}
	plan, err := op.MakePlan(c.ctx, request)
	must(t, err)
	var fields []string
	for _, f := range plan.GetChanges()[0].GetFields() {
		fields = append(fields, f.GetPath()+" "+f.GetBefore()+">"+f.GetAfter())
	}
	want := "metadata.labels[disk] >ssd, metadata.labels[old] x>, spec.availability >cordoned, spec.availabilityReason >new disk, spec.price >40, spec.bandwidth >1G"
	if got := strings.Join(fields, ", "); got != want || plan.GetChanges()[0].GetAction() != spec.ActionUpdate {
		t.Errorf("the plan shows %s, want %s", got, want)
	}

	apply := &v1.ApplyPlanRequest{Request: request, Fingerprint: plan.GetFingerprint()}
	_, err = c.as(core.RoleViewer).ApplyPlan(c.ctx, apply)
	wantCode(t, err, codes.PermissionDenied, "viewer")
	applied, err := op.ApplyPlan(c.ctx, apply)
	must(t, err)
	now := applied.GetObjects()[0].GetNode()
	if !proto.Equal(now.GetSpec().GetTaints()[0], before.GetSpec().GetTaints()[0]) || now.GetSpec().GetSubnetV4() != before.GetSpec().GetSubnetV4() ||
		now.GetSpec().GetAvailabilityBy() == "" {
		t.Errorf("%v became %v", before.GetSpec(), now.GetSpec())
	}
	again, err := op.MakePlan(c.ctx, request)
	must(t, err)
	if action := again.GetChanges()[0].GetAction(); action != spec.ActionUnchanged {
		t.Errorf("the same file again: %s", action)
	}

	for words, change := range map[string]func(*v1.Node){
		"node n2 does not exist, and a file cannot create it":           func(n *v1.Node) { n.Metadata.Name = "n2" },
		"spec.subnetV4: is assigned by the cluster":                     func(n *v1.Node) { n.Spec.SubnetV4 = "10.0.0.0/24" },
		"metadata.labels: node.cloudless/arch is the cluster's own":     func(n *v1.Node) { n.Metadata.Labels["node.cloudless/arch"] = "z80" },
		"spec.taints[1]: spot:NoSchedule is given twice":                func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, taint) },
		`spec.bandwidth: "fast" must be a number of bits per second`:    func(n *v1.Node) { n.Spec.Bandwidth = "fast" },
		"metadata.namespace: must be left out: a node is in no namespa": func(n *v1.Node) { n.Metadata.Namespace = "team" },
	} {
		broken := proto.CloneOf(wanted)
		change(broken)
		if _, err := op.MakePlan(c.ctx, &v1.PlanRequest{Objects: manifests(broken)}); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("refused with %v, want %q", err, words)
		}
	}
}

// Lists and watches match the labels that the cluster derives, too.
func TestNodesAreSelectedByDerivedLabels(t *testing.T) {
	c := newCluster(t)
	for _, arch := range []string{"amd64", "arm64"} {
		status := machineStatus()
		status.Info = &v1.NodeInfo{Os: "linux", Arch: arch, Kernel: "6.1.0"}
		c.join("node-"+arch).introduce(c.ctx, status)
	}
	for selector, want := range map[string]int{"node.cloudless/arch=arm64": 1, "node.cloudless/os=linux": 2, "node.cloudless/name=node-amd64": 1, "node.cloudless/arch=z80": 0} {
		got, err := c.as(core.RoleViewer).ListNodes(c.ctx, &v1.ListNodesRequest{Labels: selector})
		must(t, err)
		if len(got.GetItems()) != want {
			t.Errorf("%s: %d nodes, want %d", selector, len(got.GetItems()), want)
		}
	}
}

// The price and the zone of a node take effect with the change.
func TestCheaperNodeIsPreferred(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	c.join("a").introduce(c.ctx, machineStatus())
	b := c.join("b")
	b.introduce(c.ctx, machineStatus())
	_, err := op.UpdateNode(c.ctx, &v1.UpdateNodeRequest{Name: "a", Price: proto.Int64(40)})
	must(t, err)
	w := c.submit(op, workload("web"))
	c.on(w.GetMetadata().GetUid(), b.uid())
}

// emptied waits until nothing alive is on a node.
func (c *cluster) emptied(nodeUID string) *v1.Node {
	c.t.Helper()
	return c.until(func(snap *state.Snapshot) bool { return snap.Node(nodeUID).GetSpec().GetDrain().GetEndTime() != nil }).Node(nodeUID)
}

func TestDrainMovesReplicasAndUncordonEndsIt(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	a := c.work("a", idle)
	web := c.create(op, workload("web", func(w *v1.Workload) { w.Spec.Replicas, w.Spec.MinAvailable = proto.Int32(2), 2 }))

	// There is no other node: the drain is refused before anything moves.
	_, err := op.DrainNode(c.ctx, &v1.DrainNodeRequest{Name: "a"})
	wantCode(t, err, codes.FailedPrecondition, "node a cannot be drained: web needs 2 serving replicas (minAvailable) and has 2; there is no other node",
		"add a machine, lower minAvailable, or drain it all the same with --force")
	shown, err := op.GetNode(c.ctx, &v1.GetNodeRequest{Name: "a"})
	must(t, err)
	if shown.GetStatus().GetState() != "ready" || shown.GetSpec().GetDrain() != nil {
		t.Errorf("a refused drain leaves the node %s with %v", shown.GetStatus().GetState(), shown.GetSpec().GetDrain())
	}

	b := c.work("b", idle)
	n, err := op.DrainNode(c.ctx, &v1.DrainNodeRequest{Name: "a", Reason: "new disk", Grace: "3s", Timeout: "1m"})
	must(t, err)
	drain := n.GetSpec().GetDrain()
	if n.GetStatus().GetState() != "draining" || drain.GetReplicas() != 2 || drain.GetGrace() != "3s" ||
		drain.GetDeadline().AsTime().Sub(drain.GetStartTime().AsTime()) != time.Minute || len(n.GetStatus().GetDeparting()) != 2 {
		t.Errorf("the draining node is %v", n)
	}
	c.emptied(a.uid())
	c.running(web.GetMetadata().GetUid(), 2)
	for r := range c.Store.Snapshot().ReplicasOf(web.GetMetadata().GetUid()) {
		if left := r.GetSpec().GetNodeUid() == a.uid(); left != spec.Ended(r.GetStatus().GetPhase()) || !left && r.GetSpec().GetNodeUid() != b.uid() {
			t.Errorf("replica %v", r)
		}
	}
	events, err := op.ListEvents(c.ctx, &v1.ListEventsRequest{Object: "a", ObjectKind: "Node"})
	must(t, err)
	told := map[string]string{}
	for _, e := range events.GetItems() {
		told[e.GetSpec().GetReason()] = e.GetSpec().GetMessage()
	}
	if told["Draining"] != "new disk" || !strings.HasPrefix(told["Drained"], "it is empty: 2 replicas left it in ") {
		t.Errorf("the events tell %v", told)
	}
	n, err = op.UncordonNode(c.ctx, &v1.UncordonNodeRequest{Name: "a"})
	must(t, err)
	if n.GetStatus().GetState() != "ready" || n.GetSpec().GetDrain() != nil {
		t.Errorf("the node is %v", n)
	}
}

// A minAvailable of 0 allows one replica to be missing, but nobody who drains the only node expects that services stop.
func TestDrainStopsNoServiceUnlessForced(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	a := c.work("a", idle)
	c.create(op, workload("web"))
	c.create(op, workload("ledger", func(w *v1.Workload) { w.Spec.Singleton = true }))
	_, err := op.DrainNode(c.ctx, &v1.DrainNodeRequest{Name: "a"})
	wantCode(t, err, codes.FailedPrecondition, "node a cannot be drained: ", "web has 1 serving replica now and would have none, because there is no other node",
		"ledger has 1 serving replica now and would have none", "add a machine, make room on another one, or drain it all the same with --force")
	_, err = op.DrainNode(c.ctx, &v1.DrainNodeRequest{Name: "a", Force: true})
	must(t, err)
	c.emptied(a.uid())
}

func TestForcedDrainBreaksMinAvailable(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	a := c.work("a", idle)
	c.create(op, workload("web", func(w *v1.Workload) { w.Spec.Replicas, w.Spec.MinAvailable = proto.Int32(2), 2 }))
	_, err := op.DrainNode(c.ctx, &v1.DrainNodeRequest{Name: "a", Force: true})
	must(t, err)
	c.emptied(a.uid())
	_, err = op.DrainNode(c.ctx, &v1.DrainNodeRequest{Name: "a", Grace: "soon"})
	wantCode(t, err, codes.InvalidArgument, "grace")
}

// A file may drain a node, too. Its own fields about the drain are not settings.
func TestFileDrainsNode(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	a := c.work("a", idle)
	given := &v1.Node{
		ApiVersion: spec.APIVersion, Kind: "Node", Metadata: &v1.Metadata{Name: "a"},
		Spec: &v1.NodeSpec{Availability: spec.AvailabilityDraining, Drain: &v1.Drain{Force: true}},
	}
	c.applyPlan(op, &v1.PlanRequest{Objects: manifests(given)})
	if n := c.emptied(a.uid()); n.GetStatus().GetState() != spec.NodeDraining || n.GetSpec().GetDrain().GetForce() {
		t.Errorf("the node is %v", n)
	}
}
