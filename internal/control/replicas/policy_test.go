package replicas

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// policy stores a policy with a rule about nodes, or changes its expression.
func (w *world) policy(expression string) {
	w.t.Helper()
	old := w.snap().PolicyByName("places")
	p := &v1.Policy{
		Metadata: &v1.Metadata{Uid: w.newUID(), Name: "places"},
		Spec: &v1.PolicySpec{Mode: "enforce", Rules: []*v1.PolicyRule{{
			Name: "allowed", About: "node", Expression: expression, Message: "it is not for this app",
		}}},
	}
	w.change(func(b *state.Batch) {
		if old == nil {
			b.Create(p)
			return
		}
		p.Metadata = proto.CloneOf(old.GetMetadata())
		b.Update(p, old.GetMetadata().GetVersion())
	})
}

// nodesOf are the nodes of a workload's running replicas.
func (w *world) nodesOf(name string) string {
	var nodes []string
	for r := range w.snap().ReplicasOf(w.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		if r.GetStatus().GetPhase() == spec.PhaseRunning {
			nodes = append(nodes, w.snap().Node(r.GetSpec().GetNodeUid()).GetMetadata().GetName())
		}
	}
	return strings.Join(nodes, " ")
}

// A rule about nodes keeps replicas from them and says so. A corrected rule wakes those that wait, and one that is added
// later moves nothing that runs.
func TestRuleAboutNodesDecidesPlacement(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.policy(`node.metadata.name == "b" || object.metadata.name == "other"`)
	w.addWorkload("web", 1, "1")
	w.addWorkload("other", 1, "1")
	d := drive(w)
	d.rest()
	if got := w.nodesOf("other"); got != "a" {
		t.Errorf("the rule allows other, which runs on %q", got)
	}
	if got := w.phases("web"); got[spec.PhasePending] != 1 {
		t.Fatalf("web is %v", got)
	}
	const why = "is refused by rule allowed of policy places: it is not for this app"
	for r := range w.snap().ReplicasOn("") {
		if got := r.GetStatus().GetReason(); !strings.Contains(got, "a: "+why) {
			t.Errorf("the reason is %q", got)
		}
	}
	var refused string
	for _, n := range w.explained("web", "", true).GetNodes() {
		for _, r := range n.GetRefusals() {
			refused += n.GetNode() + " [" + r.GetFilter() + "] " + r.GetReason()
		}
	}
	if refused != "a [policy] "+why {
		t.Errorf("explain says %q", refused)
	}

	w.policy(`node.metadata.name in ["a", "b"]`)
	d.settleLoop()
	d.rest()
	if got := w.nodesOf("web"); got != "a" {
		t.Errorf("with the corrected rule web runs on %q", got)
	}

	w.policy(`false`)
	d.settleLoop()
	d.rest()
	if got := w.nodesOf("web"); got != "a" {
		t.Errorf("a new rule moved web to %q", got)
	}
	w.scale("web", 2)
	d.settleLoop()
	d.rest()
	if got := w.phases("web"); got[spec.PhaseRunning] != 1 || got[spec.PhasePending] != 1 {
		t.Errorf("with a rule that allows no node web is %v", got)
	}
}

// A daemon has no replica on a node that a rule refuses.
func TestRuleAboutNodesDecidesDaemons(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.addNode("b", "16")
	w.policy(`node.metadata.name == "b"`)
	made := newWorkload(w.newUID(), "agent", 0, "1")
	made.Spec.Kind, made.Spec.Replicas = spec.KindDaemon, nil
	w.change(func(b *state.Batch) {
		w.revise(b, made)
		b.Create(made)
	})
	d := drive(w)
	d.rest()
	if got := w.nodesOf("agent"); got != "b" {
		t.Errorf("the daemon runs on %q", got)
	}
	if got := (Placement{}).Nodes(w.snap(), w.snap().WorkloadByName("default", "agent")); got != 1 {
		t.Errorf("%d nodes suit the daemon", got)
	}
	w.policy(`true`)
	d.settleLoop()
	d.rest()
	if got := w.nodesOf("agent"); got != "b a" && got != "a b" {
		t.Errorf("without the rule the daemon runs on %q", got)
	}
}

// A workload that requests nothing cannot bypass a quota: each of its replicas counts as a default.
func TestMissingRequestsCountAgainstTheQuota(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.quota(&v1.Quota{Cpu: "300m"})
	w.addWorkload("web", 5, "")
	d := drive(w)
	d.rest()
	if got := w.phases("web"); got[spec.PhaseRunning] != 3 {
		t.Fatalf("with 100m for each, web is %v", got)
	}
	used := func() string {
		return (placement.Queries{}).Used(w.snap(), w.snap().NamespaceByName("default")).GetCpu()
	}
	if got := used(); got != "300m" {
		t.Errorf("%s of CPU are used", got)
	}
	// The namespace says what counts.
	n := proto.CloneOf(w.snap().NamespaceByName("default"))
	n.Spec.DefaultRequests = &v1.ResourceAmounts{Cpu: "50m"}
	w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
	d.settleLoop()
	d.rest()
	if got := w.phases("web"); got[spec.PhaseRunning] != 5 {
		t.Errorf("with 50m for each, web is %v", got)
	}
	if got := used(); got != "250m" {
		t.Errorf("%s of CPU are used", got)
	}
	// Without a quota, nothing is reserved that nobody asked for.
	n = proto.CloneOf(w.snap().NamespaceByName("default"))
	n.Spec = nil
	w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
	if got := used(); got != "0" {
		t.Errorf("%s of CPU are used", got)
	}
}
