package roles

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

func role(name string, rules ...*v1.RoleRule) *v1.Role {
	return &v1.Role{Metadata: &v1.Metadata{Name: name}, Spec: &v1.RoleSpec{Rules: rules}}
}

func rule(verbs, kinds string) *v1.RoleRule {
	return &v1.RoleRule{Verbs: strings.Fields(verbs), Kinds: strings.Fields(kinds)}
}

func finder(all ...*v1.Role) func(string) *v1.Role {
	return func(name string) *v1.Role {
		for _, r := range all {
			if r.GetMetadata().GetName() == name {
				return r
			}
		}
		return nil
	}
}

func none() iter.Seq[*v1.RoleBinding] { return slices.Values[[]*v1.RoleBinding](nil) }

func binding(role, namespace string, users ...string) *v1.RoleBinding {
	return &v1.RoleBinding{Spec: &v1.RoleBindingSpec{Role: role, Namespace: namespace, Users: users}}
}

// The roles that always exist grant a method if, and only if, it declares them as callers.
func TestBuiltinRolesGrantTheMethodsThatDeclareThem(t *testing.T) {
	order := map[v1.Method_Caller]int{v1.Method_VIEWER: 0, v1.Method_OPERATOR: 1, v1.Method_ADMIN: 2}
	for rank, name := range []string{Viewer, Operator, Admin} {
		p := Of(Subject{Role: name}, finder(), none())
		for m := range api.Methods() {
			if !m.IsForRoles() {
				continue
			}
			for _, verb := range m.Verbs {
				if m.Kind == api.AnyKind {
					continue
				}
				if got, want := p.Can(verb, m.Kind, ""), order[m.Caller] <= rank; got != want {
					t.Errorf("%s can %s %s: %t, and %s is for %s", name, verb, m.Kind, got, m.Name, m.Caller)
				}
			}
		}
	}
}

func TestRolesInOneNamespaceCountOnlyThere(t *testing.T) {
	p := Of(Subject{Role: Admin, Namespace: "shop"}, finder(), none())
	for _, ask := range []struct {
		verb, kind, namespace string
		want                  bool
	}{
		{"delete", "workload", "shop", true},
		{"privileged", "workload", "shop", false}, // a role must name it
		{"get", "workload", "other", false},
		{"get", "workload", "", false},
		{"get", "namespace", "shop", true},
		{"update", "namespace", "shop", false}, // its quota binds the role
		{"get", "node", "shop", false},
		{"create", "token", "shop", false},
		{"get", "image", "shop", true},
	} {
		if got := p.Can(ask.verb, ask.kind, ask.namespace); got != ask.want {
			t.Errorf("admin in shop can %s %s in %q: %t", ask.verb, ask.kind, ask.namespace, got)
		}
	}
	if p.IsAdmin() || p.CanSomewhere("get", "node") || !p.CanSomewhere("get", "workload") {
		t.Error("a role in one namespace counts elsewhere, or nowhere")
	}
}

func TestBindingsAddUp(t *testing.T) {
	deployer := role("deployer", rule("get create", "workload"))
	bindings := []*v1.RoleBinding{
		binding("deployer", "shop", "alice"), binding(Viewer, "", "bob"),
		{Spec: &v1.RoleBindingSpec{Role: Operator, Namespace: "lab", Groups: []string{"devs"}}},
		{Spec: &v1.RoleBindingSpec{Role: Viewer, Tokens: []string{"ci"}}},
		binding("gone", "", "alice"),
	}
	alice := Of(Subject{User: "alice", Groups: []string{"devs"}}, finder(deployer), slices.Values(bindings))
	if got := Text(alice.Grants()); got != "deployer in shop, operator in lab" {
		t.Errorf("alice has %q", got)
	}
	if !alice.Can("create", "workload", "shop") || !alice.Can("exec", "workload", "lab") || alice.Can("exec", "workload", "shop") {
		t.Error("alice may not do what her roles grant, or more")
	}
	if ci := Of(Subject{Token: "ci"}, finder(), slices.Values(bindings)); Text(ci.Grants()) != Viewer {
		t.Errorf("the token has %v", ci.Grants())
	}
	if nobody := Of(Subject{}, finder(), slices.Values([]*v1.RoleBinding{binding(Admin, "", "")})); len(nobody.Grants()) != 0 {
		t.Errorf("a subject without a name has %v", nobody.Grants())
	}
}

func TestNobodyCanGiveMoreThanTheyHave(t *testing.T) {
	mine := Of(Subject{Role: "lead", Namespace: "shop"}, finder(role("lead", rule("get create", "workload"), rule("*", "secret"))), none())
	for _, test := range []struct {
		give      *v1.Role
		namespace string
		want      string
	}{
		{role("a", rule("get", "workload")), "shop", ""},
		{role("a", rule("get", "workload"), rule("delete", "secret")), "shop", ""},
		{role("a", rule("get", "workload")), "", "get on workload"},
		{role("a", rule("get", "workload")), "other", "get on workload"},
		{role("a", rule("get delete", "workload")), "shop", "delete on workload"},
		{role("a", rule("get", "*")), "shop", "get on every kind"},
		{role("a", rule("*", "workload")), "shop", "update on workload"},
	} {
		if got := mine.Lacks(test.give.GetSpec(), test.namespace); got != test.want {
			t.Errorf("to give %v in %q, %q lacks, want %q", test.give.GetSpec(), test.namespace, got, test.want)
		}
	}
	admin := Of(Subject{Role: Admin}, finder(), none())
	if got := admin.Lacks(role("all", rule("*", "*")).GetSpec(), ""); got != "" {
		t.Errorf("an admin lacks %q", got)
	}
}

func TestSufficientRolesBeginWithTheSmallest(t *testing.T) {
	custom := slices.Values([]*v1.Role{role("scaler", rule("get update", "workload")), role("reader", rule("get", "workload"))})
	for _, test := range []struct{ verb, kind, namespace, want string }{
		{"get", "workload", "shop", "reader scaler viewer operator admin"},
		{"update", "workload", "shop", "scaler operator admin"},
		{"get", "node", "", "viewer operator admin"},
		{"create", "token", "", "admin"},
		{"get", "node", "shop", ""}, // is in no namespace
		{"privileged", "workload", "", "admin"},
		{"privileged", "workload", "shop", ""},
	} {
		if got := strings.Join(Sufficient([]string{test.verb}, test.kind, test.namespace, custom), " "); got != test.want {
			t.Errorf("to %s %s: %q, want %q", test.verb, test.kind, got, test.want)
		}
	}
}

func TestUnknownWordsAreExplained(t *testing.T) {
	for _, test := range []struct{ got, want string }{
		{UnknownVerb("delte"), `did you mean delete?`},
		{UnknownVerb("list"), `"get" includes it`},
		{UnknownKind("workloads"), "did you mean workload?"},
		{UnknownKind("wrkload"), "did you mean workload?"},
		{UnknownKind("zzz"), "there are"},
		{UnknownVerb("get") + UnknownKind("*") + UnknownKind("network"), ""},
	} {
		if !strings.Contains(test.got, test.want) || test.want == "" && test.got != "" {
			t.Errorf("%q does not say %q", test.got, test.want)
		}
	}
	field, problem := Check(role("x", rule("get", "workload"), rule("get fly", "node")).GetSpec())
	if field != "spec.rules[1].verbs[1]" || !strings.Contains(problem, "fly") {
		t.Errorf("%s: %s", field, problem)
	}
}

// What a caller may give away never permits anything that the caller may not do itself.
func TestGivenRolesPermitNothingNew(t *testing.T) {
	words := func(t *rapid.T, from []string, label string) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(from), 1, 3).Draw(t, label), " ")
	}
	verbs, kinds := append(api.Verbs(), Any), append(api.GrantableKinds(), Any)
	namespaces := rapid.SampledFrom([]string{"", "shop", "lab"})
	some := func(t *rapid.T, label string) *v1.Role {
		return role(label, rule(words(t, verbs, label), words(t, kinds, label)), rule(words(t, verbs, label), words(t, kinds, label)))
	}
	rapid.Check(t, func(t *rapid.T) {
		own, given := some(t, "own"), some(t, "given")
		mine := Of(Subject{Role: "own", Namespace: namespaces.Draw(t, "mine")}, finder(own), none())
		where := namespaces.Draw(t, "where")
		theirs := Of(Subject{Role: "given", Namespace: where}, finder(given), none())
		may := mine.Lacks(given.GetSpec(), where) == ""
		for _, kind := range api.GrantableKinds() {
			for _, verb := range api.Verbs() {
				for _, namespace := range []string{"", "shop", "lab"} {
					if may && theirs.Can(verb, kind, namespace) && !mine.Can(verb, kind, namespace) {
						t.Fatalf("%v may give %v in %q, which permits %s %s in %q", own.GetSpec(), given.GetSpec(), where, verb, kind, namespace)
					}
				}
			}
		}
	})
}

func BenchmarkCan(b *testing.B) {
	var bindings []*v1.RoleBinding
	for i := range 100 {
		bindings = append(bindings, binding(Operator, "ns-"+string(rune('a'+i%26)), "alice"))
	}
	p := Of(Subject{User: "alice"}, finder(), slices.Values(bindings))
	for b.Loop() {
		if !p.Can("update", "workload", "ns-z") || p.Can("update", "node", "") {
			b.Fatal("wrong")
		}
	}
}
