package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/policies"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/test/openid"
)

func (u *user) policies() v1.PolicyServiceClient { return v1.NewPolicyServiceClient(u.conn) }

// rule is a policy of one rule about the label "team".
func rule(name, mode, expression string, change ...func(*v1.Policy)) *v1.Policy {
	p := &v1.Policy{
		Metadata: &v1.Metadata{Name: name},
		Spec: &v1.PolicySpec{Mode: mode, Rules: []*v1.PolicyRule{{
			Name: "team", Expression: expression, Field: "metadata.labels", Message: "every app belongs to a team", Fix: "add the label team",
		}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func matching(m *v1.PolicyMatch) func(*v1.Policy) { return func(p *v1.Policy) { p.Spec.Match = m } }

const hasTeam = `has(object.metadata.labels.team)`

func (c *cluster) rules(u *user, p *v1.Policy) *v1.Policy {
	c.t.Helper()
	answer, err := u.policies().ApplyPolicy(c.ctx, &v1.ApplyPolicyRequest{Policy: p})
	must(c.t, err)
	return answer.GetPolicy()
}

// policyEvents are the messages of the events about broken rules.
func (c *cluster) policyEvents(u *user) (all []string) {
	c.t.Helper()
	answer, err := u.ListEvents(c.ctx, &v1.ListEventsRequest{})
	must(c.t, err)
	for _, e := range answer.GetItems() {
		if e.GetSpec().GetReason() == "PolicyBroken" {
			all = append(all, e.GetSpec().GetSeverity()+": "+e.GetSpec().GetMessage())
		}
	}
	return all
}

// An enforced rule refuses every way to write an object, and says which rule, which field and what to do.
func TestEnforcedPolicyRefusesEveryWrite(t *testing.T) {
	c := newCluster(t)
	admin, op := c.as(core.RoleAdmin), c.as(core.RoleOperator)
	made := c.made(op, "old", replicasOf(0)) // before there is a policy
	c.rules(admin, rule("teams", "enforce", hasTeam))
	const words = "metadata.labels: breaks rule team of policy teams: every app belongs to a team; add the label team"
	refused := func(err error) {
		t.Helper()
		wantCode(t, err, codes.InvalidArgument, words)
	}
	w := workload("web", replicasOf(0))
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: w})
	refused(err)
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: w})
	refused(err)
	changed := proto.CloneOf(made)
	changed.Spec.Command = []string{"x"}
	_, err = op.UpdateWorkload(c.ctx, &v1.UpdateWorkloadRequest{Workload: changed})
	refused(err)
	_, err = op.ScaleWorkload(c.ctx, &v1.ScaleWorkloadRequest{Name: "old", Replicas: proto.Int32(1)})
	refused(err)
	plan := c.plan(op, asking(w))
	if f := plan.GetChanges()[0].GetFindings(); len(f) != 1 || f[0].GetPolicy() != "teams" || f[0].GetField() != "metadata.labels" {
		t.Errorf("the plan finds %v", f)
	}
	_, err = op.ApplyPlan(c.ctx, &v1.ApplyPlanRequest{Request: asking(w), Fingerprint: plan.GetFingerprint()})
	refused(err)
	labelled("team", "blue")(w)
	c.applyPlan(op, asking(w))

	// What exists and does not change stays, and can be applied again; the plan shows what would refuse a change.
	unchanged := workload("old", replicasOf(0))
	plan = c.plan(op, asking(unchanged))
	if change := plan.GetChanges()[0]; change.GetAction() != spec.ActionUnchanged || len(change.GetFindings()) != 1 {
		t.Errorf("the plan for what exists is %v", change)
	}
	c.applyPlan(op, asking(unchanged))
	_, err = op.RestartWorkload(c.ctx, &v1.RestartWorkloadRequest{Name: "old"}) // of what was admitted
	must(t, err)
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "old"})
	must(t, err)

	// A policy about deletion, and about another kind.
	c.rules(admin, rule("keep", "", `object.metadata.name != "web"`, matching(&v1.PolicyMatch{Verbs: []string{"delete"}})))
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	wantCode(t, err, codes.InvalidArgument, "policy keep")
	c.rules(admin, rule("routes", "", `object.spec.host.endsWith(".example.org")`, matching(&v1.PolicyMatch{Kinds: []string{"route"}}), func(p *v1.Policy) { p.Spec.Rules[0].Field = "spec.host" }))
	_, err = op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("x", "shop.example.com")})
	wantCode(t, err, codes.InvalidArgument, "spec.host: breaks rule team of policy routes")
	_, err = op.policies().DeletePolicy(c.ctx, &v1.DeletePolicyRequest{Name: "keep"})
	wantCode(t, err, codes.PermissionDenied)
	_, err = admin.policies().DeletePolicy(c.ctx, &v1.DeletePolicyRequest{Name: "keep"})
	must(t, err)
	_, err = op.DeleteWorkload(c.ctx, &v1.DeleteWorkloadRequest{Name: "web"})
	must(t, err)
}

// All broken rules are told at once.
func TestEveryBrokenRuleIsTold(t *testing.T) {
	c := newCluster(t)
	admin, op := c.as(core.RoleAdmin), c.as(core.RoleOperator)
	c.rules(admin, rule("teams", "", hasTeam))
	c.rules(admin, rule("owners", "", `has(object.metadata.labels.owner)`))
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", func(w *v1.Workload) { w.Spec.Network = "host" })})
	wantCode(t, err, codes.InvalidArgument, "policy teams", "policy owners", "spec.network: must not be \"host\"")
}

// Mode "warn" tells the caller and records it; mode "record" only records.
func TestPoliciesThatRefuseNothing(t *testing.T) {
	c := newCluster(t)
	admin, op := c.as(core.RoleAdmin), c.as(core.RoleOperator)
	c.rules(admin, rule("teams", "warn", hasTeam))
	var header metadata.MD
	_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("web", replicasOf(0))}, grpc.Header(&header))
	must(t, err)
	const words = "breaks rule team of policy teams: every app belongs to a team; add the label team"
	if got := header.Get(policies.WarningHeader); len(got) != 1 || got[0] != words {
		t.Errorf("the caller is told %q", got)
	}
	if got := c.policyEvents(op); len(got) != 1 || got[0] != "warning: "+words {
		t.Errorf("the events are %q", got)
	}
	c.rules(admin, rule("teams", "record", hasTeam))
	header = nil
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", replicasOf(1))}, grpc.Header(&header))
	must(t, err)
	if got := header.Get(policies.WarningHeader); len(got) != 0 {
		t.Errorf("the caller is told %q", got)
	}
	if got := c.policyEvents(op); len(got) != 2 || got[0] != "info: "+words {
		t.Errorf("the events are %q", got)
	}
	plan := c.applyPlan(op, asking(workload("web", replicasOf(2))))
	if f := plan.GetPlan().GetChanges()[0].GetFindings(); len(f) != 1 || f[0].GetMode() != "record" {
		t.Errorf("the plan finds %v", f)
	}
	if got := c.policyEvents(op); len(got) != 3 {
		t.Errorf("the events are %q", got)
	}
}

// A plan judges by the policies that it holds itself, so that they can be tried before they are written.
func TestPlanTriesPoliciesThatAreNotWritten(t *testing.T) {
	c := newCluster(t)
	op := c.as(core.RoleOperator)
	request := &v1.PlanRequest{Objects: manifests(workload("web", replicasOf(0)), rule("teams", "", hasTeam))}
	for _, change := range c.plan(op, request).GetChanges() {
		if want := map[string]int{"Workload": 1, "Policy": 0}[change.GetKind()]; len(change.GetFindings()) != want {
			t.Errorf("about the %s the plan finds %v", change.GetKind(), change.GetFindings())
		}
	}
	request.Objects = append(request.Objects, manifests(rule("broken", "", "object.spec.netwrok == ''"))...)
	_, err := op.MakePlan(c.ctx, request)
	wantCode(t, err, codes.InvalidArgument, "object.spec has no field netwrok; did you mean network?")
}

func TestPolicyThatCannotWorkIsNotWritten(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	for _, refused := range []*v1.Policy{
		rule("a", "", "object.spec.netwrok == ''"),
		rule("a", "", "object.spec.network"),
		rule("a", "", "object.spec.ports.all(a, object.spec.ports.all(b, object.spec.ports.all(c, a.port + b.port > c.port)))"),
	} {
		_, err := admin.policies().CreatePolicy(c.ctx, &v1.CreatePolicyRequest{Policy: refused})
		wantCode(t, err, codes.InvalidArgument, "spec.rules[0].expression")
	}
}

// What reaches beyond a workload's own container needs a permission, or a policy that decides about it. What a workload has
// it keeps, whoever changes something else.
func TestHostAccessNeedsPermission(t *testing.T) {
	c := newCluster(t)
	admin, op := c.as(core.RoleAdmin), c.as(core.RoleOperator)
	onHost := func(w *v1.Workload) { w.Spec.Network = "host" }
	low := func(w *v1.Workload) {
		w.Spec.Network, w.Spec.Ports = "node", []*v1.Port{{Name: "mail", Port: 25, Publish: 25}}
	}
	secured := func(s *v1.Security) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.Security = s } }
	for field, change := range map[string]func(*v1.Workload){
		"spec.network: must not be \"host\"":                onHost,
		"spec.ports[0].publish: must not be 25":             low,
		"spec.security.profile: must not be \"privileged\"": secured(&v1.Security{Profile: "privileged"}),
		"spec.security.devices[0]: must not be /dev/fuse":   secured(&v1.Security{Devices: []string{"/dev/fuse"}}),
	} {
		_, err := op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("x", change, replicasOf(0))})
		wantCode(t, err, codes.InvalidArgument, field, "the role admin", `the verb "privileged"`)
	}
	_, err := op.routes().CreateRoute(c.ctx, &v1.CreateRouteRequest{Route: to("x", "", onTCP(25))})
	wantCode(t, err, codes.InvalidArgument, "spec.tcp: must not be 25")

	// An operator can change the rest of what an admin made, and no more.
	c.made(admin, "dns", onHost, replicasOf(0))
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("dns", onHost, replicasOf(0), labelled("team", "a"))})
	must(t, err)
	_, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("dns", onHost, replicasOf(0), secured(&v1.Security{Profile: "privileged"}))})
	wantCode(t, err, codes.InvalidArgument, "spec.security.profile")

	// A policy decides instead, but not about the profile.
	allows := rule("hosts", "", `object.spec.network != "host" || object.metadata.name.startsWith("net-")`, func(p *v1.Policy) {
		p.Spec.Rules[0].Name, p.Spec.Rules[0].Field = "host-network", "spec.network"
		p.Spec.Rules = append(p.Spec.Rules, &v1.PolicyRule{Name: "profile", Expression: "true", Message: "allowed"})
	})
	c.rules(admin, allows)
	c.made(op, "net-a", onHost, replicasOf(0))
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("b", onHost, replicasOf(0))})
	wantCode(t, err, codes.InvalidArgument, "policy hosts")
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("net-c", secured(&v1.Security{Profile: "privileged"}), replicasOf(0))})
	wantCode(t, err, codes.InvalidArgument, "spec.security.profile")
	_, err = admin.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("d", onHost, replicasOf(0))})
	wantCode(t, err, codes.InvalidArgument, "policy hosts") // policies are for all
}

// A namespace limits the priority and the profile of its workloads, and gives them its profile.
func TestCeilingsOfNamespaces(t *testing.T) {
	c := newCluster(t)
	admin, op := c.as(core.RoleAdmin), c.as(core.RoleOperator)
	important := func(priority int32) func(*v1.Workload) {
		return func(w *v1.Workload) { w.Spec.Priority = &priority }
	}
	c.made(admin, "early", inNamespace("shop"), important(800), replicasOf(0)) // an operator may not use a new namespace
	shop := namespace("shop", nil)
	shop.Spec.MaxPriority, shop.Spec.Profile = new(int32(50)), "restricted"
	plan := c.plan(admin, &v1.PlanRequest{Objects: manifests(shop)})
	const over = "the priority of workload early must be at most 50 in namespace shop, and is 800"
	if got := strings.Join(plan.GetChanges()[0].GetOver(), "; "); !strings.Contains(got, over) || !strings.Contains(got, "the security profile of workload early") {
		t.Errorf("the plan says %q", got)
	}
	c.applyPlan(admin, &v1.PlanRequest{Objects: manifests(shop)})
	shown, err := op.namespaces().GetNamespace(c.ctx, &v1.GetNamespaceRequest{Name: "shop"})
	must(t, err)
	if got := strings.Join(shown.GetStatus().GetOver(), "; "); !strings.Contains(got, over) {
		t.Errorf("the namespace is over %q", got)
	}

	made := c.made(op, "web", inNamespace("shop"), replicasOf(0))
	if got := made.GetSpec(); got.GetPriority() != 50 || got.GetSecurity().GetProfile() != "restricted" {
		t.Errorf("a workload of the namespace has priority %d and profile %q", got.GetPriority(), got.GetSecurity().GetProfile())
	}
	_, err = op.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: workload("x", inNamespace("shop"), important(51), func(w *v1.Workload) { w.Spec.Security = &v1.Security{Profile: "default"} })})
	wantCode(t, err, codes.InvalidArgument, "spec.priority: must be at most 50 in namespace shop, and is 51", "--max-priority 51",
		`spec.security.profile: must be "restricted" at most in namespace shop, and is "default"`, "--profile default")
	// What exists stays as it is, and may change otherwise. Applied unchanged, it is unchanged.
	answer, err := op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("early", inNamespace("shop"), important(800), replicasOf(0))})
	must(t, err)
	if answer.GetResult() != "unchanged" {
		t.Errorf("what exists is %s", answer.GetResult())
	}
	answer, err = op.ApplyWorkload(c.ctx, &v1.ApplyWorkloadRequest{Workload: workload("web", inNamespace("shop"), replicasOf(0))})
	must(t, err)
	if answer.GetResult() != "unchanged" {
		t.Errorf("applied again, a workload is %s", answer.GetResult())
	}

	// A ceiling of "privileged" is no default, and no permission.
	lab := namespace("lab", nil)
	lab.Spec.Profile = "privileged"
	c.applyPlan(admin, &v1.PlanRequest{Objects: manifests(lab)})
	if got := c.made(op, "web", inNamespace("lab"), replicasOf(0)).GetSpec().GetSecurity().GetProfile(); got != "" {
		t.Errorf("a workload that names no profile has %q", got)
	}
}

func TestPlanSaysWhatCountsWithoutARequest(t *testing.T) {
	c := newCluster(t)
	admin := c.as(core.RoleAdmin)
	c.applyPlan(admin, &v1.PlanRequest{Objects: manifests(namespace("shop", &v1.Quota{Cpu: "2"}))})
	plan := c.plan(admin, asking(workload("web", inNamespace("shop"), replicasOf(0))))
	if got := strings.Join(plan.GetChanges()[0].GetWarnings(), "; "); got != "it requests no CPU, so each replica is given 100m and counts with that in namespace shop" {
		t.Errorf("the plan warns: %q", got)
	}
}

// The servers ask no registry for somebody who may not create workloads; the plan says what it leaves out.
func TestPlanOfAViewerAsksNoRegistry(t *testing.T) {
	a := newAbroad(t)
	c := newCluster(t, func(o *Options) { o.Foreign = a })
	viewer, op := c.as(core.RoleViewer), c.as(core.RoleOperator)
	request := asking(workload("web", imageOf(a.host+"/app:1"), replicasOf(0)))
	asked := a.asked.Load()
	plan := c.plan(viewer, request)
	if got := strings.Join(plan.GetChanges()[0].GetWarnings(), "; "); !strings.Contains(got, "registry "+a.host+" was not asked for the image") || a.asked.Load() != asked {
		t.Errorf("after %d questions the plan warns: %q", a.asked.Load()-asked, got)
	}
	if _, err := op.MakePlan(c.ctx, request); a.asked.Load() == asked {
		t.Errorf("for an operator no registry is asked either: %v", err)
	}
}

// Rules see who calls: a user with the groups of the provider, and the roles that count where the object is, however the
// caller has them.
func TestPoliciesSeeTheCaller(t *testing.T) {
	provider := openid.Start(t)
	c := withProvider(t, provider, &v1.Oidc{Scopes: []string{"email", "groups"}})
	c.namespaced("shop", "lab")
	admin := c.as(core.RoleAdmin)
	login, err := c.exchange(c.atProvider(provider, "ada", false))
	must(t, err)
	ci := c.dial(nil, c.newTokenSecret(&v1.CreateTokenRequest{Name: "ci", Role: core.RoleViewer, Namespace: "lab"}))
	ada := c.dial(nil, login.GetSecret())
	must(t, c.applyRole(admin, role("deployer", granting("*", "workload"))))
	deployers := binding("deployers", "deployer", "shop")
	deployers.Spec.Groups = []string{"deployers"}
	must(t, c.applyBinding(admin, deployers))
	must(t, c.applyBinding(admin, binding("robots", core.RoleOperator, "shop", "ci")))
	must(t, c.applyBinding(admin, binding("robots-lab", "deployer", "lab", "ci")))

	sees := func(who *user, namespace, rest string) {
		t.Helper()
		c.rules(admin, rule("caller", "enforce", "!("+rest+")")) // so that it is refused by what it sees
		_, err := who.CreateWorkload(c.ctx, &v1.CreateWorkloadRequest{Workload: placedIn(workload("web", replicasOf(0)), namespace)})
		wantCode(t, err, codes.InvalidArgument, "breaks rule team of policy caller")
	}
	sees(ada, "shop", `caller.user == "ada@example.org" && caller.id == "user/ada@example.org"`)
	sees(ada, "shop", `"deployers" in caller.groups && "readers" in caller.groups && size(caller.groups) == 2`)
	sees(ada, "shop", `caller.roles == ["deployer"]`)
	sees(ci, "shop", `caller.user == "ci" && caller.id == "user/ci" && size(caller.groups) == 0`)
	sees(ci, "shop", `caller.roles == ["operator"]`) // its own role counts in the other namespace only
	sees(ci, "lab", `"viewer" in caller.roles && "deployer" in caller.roles && size(caller.roles) == 2`)
}
