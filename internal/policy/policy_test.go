package policy_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/policy"
	"github.com/cloudless/cloudless/internal/spec"
)

// with returns a policy with one rule.
func with(expression string, change ...func(*v1.Policy)) *v1.Policy {
	p := &v1.Policy{
		Metadata: &v1.Metadata{Name: "p", Uid: "1"},
		Spec:     &v1.PolicySpec{Rules: []*v1.PolicyRule{{Name: "r", Expression: expression, Message: "it is wrong", Field: "spec.network", Fix: "correct it"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func forKinds(kinds ...string) func(*v1.Policy) {
	return func(p *v1.Policy) { p.Spec.Match = &v1.PolicyMatch{Kinds: kinds}; p.Spec.Rules[0].Field = "" }
}

func aboutNode(p *v1.Policy) { p.Spec.Rules[0].About, p.Spec.Rules[0].Field = "node", "" }

func workload(change ...func(*v1.Workload)) *v1.Workload {
	w := &v1.Workload{
		Metadata: &v1.Metadata{Name: "web", Namespace: "shop", Labels: map[string]string{"team": "blue"}},
		Spec:     &v1.WorkloadSpec{Image: "registry.lan:5000/shop/web:1.2", Network: "host", Ports: []*v1.Port{{Port: 80, Publish: 443}}},
	}
	for _, f := range change {
		f(w)
	}
	return w
}

// judge returns what one policy says of a change.
func judge(t *testing.T, p *v1.Policy, r policy.Request) []*v1.PolicyFinding {
	t.Helper()
	if err := policy.Check(p); err != nil {
		t.Fatalf("the policy is refused: %v", err)
	}
	if r.Kind == "" {
		r.Kind = "workload"
	}
	if r.Verb == "" {
		r.Verb = policy.Create
	}
	return policy.Compile(p).Judge(t.Context(), &r)
}

func TestExpressions(t *testing.T) {
	ada := &v1.PolicyCaller{Id: "user/ada", User: "ada", Groups: []string{"ops"}, Roles: []string{"operator"}}
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for expression, fulfilled := range map[string]bool{
		`object.spec.network != "host"`:                                             false,
		`object.spec.network == "host"`:                                             true,
		`registry(object.spec.image) == "registry.lan:5000"`:                        true,
		`registry("nginx") == "registry.cloudless.internal"`:                        true,
		`repository(object.spec.image) == "shop/web"`:                               true,
		`tag(object.spec.image) != "latest" && digest(object.spec.image) == ""`:     true,
		`cpu("500m") < cpu("1") && memory("1Gi") == 1073741824`:                     true,
		`memory(object.spec.resources.limits.memory) > 0`:                           false,
		`object.spec.ports.all(p, p.publish == 0 || p.publish >= 1024)`:             false,
		`has(object.metadata.labels.team)`:                                          true,
		`object.metadata.labels[?"owner"].orValue("none") == "none"`:                true,
		`object.metadata.labels["owner"] == "none"`:                                 false, // there is no such key
		`before == null && verb == "create" && object.metadata.namespace == "shop"`: true,
		`caller.user == "ada" && "ops" in caller.groups && "admin" in caller.roles`: false,
		`now < timestamp("2027-01-01T00:00:00Z")`:                                   true,
		`object.spec.minAvailable == 0`:                                             true,
		`"web".upperAscii() == "WEB"`:                                               true,
		`sets.contains(["a", "b"], ["a"])`:                                          true,
	} {
		t.Run(expression, func(t *testing.T) {
			found := judge(t, with(expression), policy.Request{Object: workload(), Caller: ada, Now: now})
			if (len(found) == 0) != fulfilled {
				t.Errorf("found %v, and the rule should be fulfilled: %t", found, fulfilled)
			}
		})
	}
}

// A finding says everything that the author of an object needs.
func TestFindingNamesRuleFieldAndFix(t *testing.T) {
	found := judge(t, with(`object.spec.network != "host"`), policy.Request{Object: workload()})
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	f := found[0]
	if f.GetPolicy() != "p" || f.GetRule() != "r" || f.GetMode() != "enforce" || f.GetField() != "spec.network" || f.GetMessage() != "it is wrong" ||
		f.GetFix() != "correct it" || f.GetNamespace() != "shop" || f.GetName() != "web" || f.GetKind() != "workload" {
		t.Errorf("the finding is %v", f)
	}
}

func TestRuleThatCannotBeEvaluatedIsBroken(t *testing.T) {
	found := judge(t, with(`object.metadata.labels["owner"] == "ada"`), policy.Request{Object: workload()})
	if len(found) != 1 || !strings.Contains(found[0].GetMessage(), "no such key: owner") {
		t.Errorf("found %v", found)
	}
}

func TestPolicyIsRefusedWhenItIsWritten(t *testing.T) {
	for name, c := range map[string]struct {
		policy *v1.Policy
		field  string
		words  string
	}{
		"misspelled field":        {with(`object.spec.netwrok != "host"`), "spec.rules[0].expression", "object.spec has no field netwrok; did you mean network?"},
		"name of the API":         {with(`object.spec.min_available > 0`), "spec.rules[0].expression", "did you mean minAvailable?"},
		"field inside of a loop":  {with(`object.spec.ports.all(p, p.publsh == 0)`), "spec.rules[0].expression", "did you mean publish?"},
		"field of the caller":     {with(`caller.gruops.size() > 0`), "spec.rules[0].expression", "did you mean groups?"},
		"misspelled variable":     {with(`objct.spec.network == ""`), "spec.rules[0].expression", "did you mean object?"},
		"unknown function":        {with(`registy(object.spec.image) == ""`), "spec.rules[0].expression", "did you mean registry?"},
		"syntax":                  {with(`object.spec.network ==`), "spec.rules[0].expression", "column"},
		"types that do not fit":   {with(`object.spec.network == 3`), "spec.rules[0].expression", "no matching overload"},
		"reserved word":           {with(`namespace == "shop"`), "spec.rules[0].expression", "object.metadata.namespace"},
		"not a truth value":       {with(`object.spec.network`), "spec.rules[0].expression", "must be true or false"},
		"broken regular pattern":  {with(`object.spec.network.matches("(")`), "spec.rules[0].expression", "invalid matches argument"},
		"text of any length":      {with(`object.spec.network.replace("a", "aaaaaaaa") == ""`), "spec.rules[0].expression", "must not call replace"},
		"too many loops":          {with(`object.spec.ports.all(a, object.spec.ports.all(b, object.spec.ports.all(c, a.port + b.port > c.port)))`), "spec.rules[0].expression", "too long"},
		"loops over texts":        {with(`object.spec.command.all(a, object.spec.command.all(b, a.split("").all(x, b.contains(x))))`), "spec.rules[0].expression", "too long"},
		"unknown kind":            {with(`true`, forKinds("workloda")), "spec.match.kinds[0]", "did you mean workload?"},
		"policies themselves":     {with(`true`, forKinds("policy")), "spec.match.kinds[0]", "could not be corrected"},
		"broken selector":         {with(`true`, func(p *v1.Policy) { p.Spec.Match = &v1.PolicyMatch{Labels: "=="} }), "spec.match.labels", ""},
		"unknown field of a kind": {with(`true`, func(p *v1.Policy) { p.Spec.Rules[0].Field = "spec.netwrk" }), "spec.rules[0].field", "did you mean network?"},
		"one of several kinds":    {with(`object.spec.network == ""`, forKinds("workload", "route")), "spec.rules[0].expression", "for a route"},
		"caller of a node":        {with(`caller.user == "ada"`, aboutNode), "spec.rules[0].expression", "rule about nodes has object and node"},
		"node of an object":       {with(`node.metadata.name == "a"`), "spec.rules[0].expression", "set about: node"},
		"nodes in mode warn":      {with(`true`, aboutNode, func(p *v1.Policy) { p.Spec.Mode = "warn" }), "spec.rules[0].about", "mode enforce"},
		"nodes for other kinds":   {with(`true`, forKinds("route"), aboutNode), "spec.rules[0].about", "only workloads"},
		"two rules of one name": {with(`true`, func(p *v1.Policy) {
			p.Spec.Rules = append(p.Spec.Rules, p.Spec.Rules[0])
		}), "spec.rules[1].name", "another rule"},
	} {
		t.Run(name, func(t *testing.T) {
			broken, ok := errors.AsType[*spec.Error](policy.Check(c.policy))
			if !ok {
				t.Fatal("it is accepted")
			}
			if v := broken.Violations[0]; v.Field != c.field || !strings.Contains(v.Message, c.words) {
				t.Errorf("the violation is %s: %s", v.Field, v.Message)
			}
		})
	}
}

func TestMatch(t *testing.T) {
	never := func(m *v1.PolicyMatch) *v1.Policy {
		return with("false", func(p *v1.Policy) { p.Spec.Match = m; p.Spec.Rules[0].Field = "" })
	}
	for name, c := range map[string]struct {
		match   *v1.PolicyMatch
		verb    string
		matches bool
	}{
		"a workload by default":      {nil, policy.Update, true},
		"not deletion by default":    {nil, policy.Delete, false},
		"deletion":                   {&v1.PolicyMatch{Verbs: []string{"delete"}}, policy.Delete, true},
		"only deletion":              {&v1.PolicyMatch{Verbs: []string{"delete"}}, policy.Create, false},
		"another kind":               {&v1.PolicyMatch{Kinds: []string{"route"}}, policy.Create, false},
		"its namespace":              {&v1.PolicyMatch{Namespaces: []string{"shop"}}, policy.Create, true},
		"another namespace":          {&v1.PolicyMatch{Namespaces: []string{"blog"}}, policy.Create, false},
		"an exempt namespace":        {&v1.PolicyMatch{ExceptNamespaces: []string{"shop"}}, policy.Create, false},
		"another exempt namespace":   {&v1.PolicyMatch{ExceptNamespaces: []string{"blog"}}, policy.Create, true},
		"its labels":                 {&v1.PolicyMatch{Labels: "team=blue"}, policy.Create, true},
		"other labels":               {&v1.PolicyMatch{Labels: "team=red"}, policy.Create, false},
		"several kinds, one of them": {&v1.PolicyMatch{Kinds: []string{"workload", "route"}}, policy.Create, true},
	} {
		t.Run(name, func(t *testing.T) {
			if found := judge(t, never(c.match), policy.Request{Object: workload(), Verb: c.verb}); (len(found) > 0) != c.matches {
				t.Errorf("found %v", found)
			}
		})
	}
}

func TestNodesAreRefusedWithTheRule(t *testing.T) {
	p := with(`node.metadata.labels[?"zone"].orValue("") == "eu" || object.metadata.labels[?"region"].orValue("") == "any"`, aboutNode)
	if err := policy.Check(p); err != nil {
		t.Fatal(err)
	}
	made := policy.Compile(p)
	if !made.JudgesNodes(workload().GetMetadata()) {
		t.Error("it judges no nodes")
	}
	for zone, words := range map[string]string{"eu": "", "us": "is refused by rule r of policy p: it is wrong"} {
		node := &v1.Node{Metadata: &v1.Metadata{Name: "box", Labels: map[string]string{"zone": zone}}}
		if got := made.RefusesNode(workload(), node); got != words {
			t.Errorf("in zone %s: %q, want %q", zone, got, words)
		}
	}
	// Such a rule says nothing about the object itself.
	if found := judge(t, p, policy.Request{Object: workload()}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// A policy that another release stored may not compile any more. Then nothing passes, and the finding says what to correct.
func TestStoredPolicyThatDoesNotCompile(t *testing.T) {
	found := policy.Compile(with(`object.spec.gone == 1`)).Judge(t.Context(), &policy.Request{Kind: "workload", Verb: policy.Create, Object: workload()})
	if len(found) != 1 || !strings.Contains(found[0].GetMessage(), "has no field gone") || !strings.Contains(found[0].GetFix(), "policy edit p") {
		t.Errorf("found %v", found)
	}
}

func TestPolicyIsCompiledOnce(t *testing.T) {
	p := with("true")
	first := policy.Compiled(p)
	if policy.Compiled(p) != first || policy.Compiled(with("true")) != first {
		t.Error("an unchanged policy is compiled again")
	}
	if policy.Compiled(with("false")) == first {
		t.Error("a changed policy is not compiled again")
	}
}

func TestAccesses(t *testing.T) {
	secured := func(s *v1.Security) func(*v1.Workload) { return func(w *v1.Workload) { w.Spec.Security = s } }
	plain := func(w *v1.Workload) { w.Spec.Network, w.Spec.Ports = "", nil }
	for name, c := range map[string]struct {
		before, now policy.Object
		fields      string
	}{
		"host and low port":         {nil, workload(), "spec.network spec.ports[0].publish"},
		"unchanged":                 {workload(), workload(secured(nil)), ""},
		"nothing special":           {nil, workload(plain), ""},
		"a further port":            {workload(), workload(func(w *v1.Workload) { w.Spec.Ports = append(w.Spec.Ports, &v1.Port{Port: 1, Publish: 22}) }), "spec.ports[1].publish"},
		"the same port by UDP":      {workload(), workload(func(w *v1.Workload) { w.Spec.Ports[0].Protocol = "udp" }), "spec.ports[0].publish"},
		"a high port":               {nil, workload(plain, func(w *v1.Workload) { w.Spec.Ports = []*v1.Port{{Port: 80, Publish: 1024}} }), ""},
		"privileged":                {workload(plain), workload(plain, secured(&v1.Security{Profile: "privileged"})), "spec.security.profile"},
		"still privileged":          {workload(secured(&v1.Security{Profile: "privileged"})), workload(secured(&v1.Security{Profile: "privileged"})), ""},
		"a device":                  {nil, workload(plain, secured(&v1.Security{Devices: []string{"/dev/fuse"}})), "spec.security.devices[0]"},
		"the device that it has":    {workload(secured(&v1.Security{Devices: []string{"/dev/fuse"}})), workload(secured(&v1.Security{Devices: []string{"/dev/fuse"}})), ""},
		"a TCP route at a low port": {nil, &v1.Route{Spec: &v1.RouteSpec{Tcp: 25}}, "spec.tcp"},
		"a UDP route at a high one": {nil, &v1.Route{Spec: &v1.RouteSpec{Udp: 5353}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var fields []string
			for _, a := range policy.Accesses(c.before, c.now) {
				fields = append(fields, a.Field)
			}
			if got := strings.Join(fields, " "); got != c.fields {
				t.Errorf("asks for %q, want %q", got, c.fields)
			}
		})
	}
}

func BenchmarkTwentyPolicies(b *testing.B) {
	var all []*policy.Policy
	for range 20 {
		all = append(all, policy.Compile(with(`object.spec.ports.all(p, p.publish == 0 || p.publish >= 1024) && registry(object.spec.image) in ["registry.lan:5000", "ghcr.io"]`)))
	}
	r := &policy.Request{Kind: "workload", Verb: policy.Create, Object: workload(), Caller: &v1.PolicyCaller{}, Now: time.Unix(0, 0)}
	for b.Loop() {
		for _, p := range all {
			p.Judge(b.Context(), r)
		}
	}
}
