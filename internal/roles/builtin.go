package roles

import (
	"iter"
	"slices"
	"sync"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// The roles that always exist.
const (
	Viewer   = "viewer"
	Operator = "operator"
	Admin    = "admin"
)

// Built-in roles, from the smallest to the largest. They grant what the methods of the API declare.
var builtin = sync.OnceValue(func() []*v1.Role {
	return []*v1.Role{
		{
			ApiVersion: "cloudless/v1", Kind: "Role", Metadata: &v1.Metadata{Name: Viewer},
			Spec: &v1.RoleSpec{Description: "Reads everything but tokens and the values of secrets and variables.", Rules: declared(v1.Method_VIEWER)},
		},
		{
			ApiVersion: "cloudless/v1", Kind: "Role", Metadata: &v1.Metadata{Name: Operator},
			Spec: &v1.RoleSpec{Description: "Runs workloads, and operates nodes.", Rules: declared(v1.Method_VIEWER, v1.Method_OPERATOR)},
		},
		{
			ApiVersion: "cloudless/v1", Kind: "Role", Metadata: &v1.Metadata{Name: Admin},
			Spec: &v1.RoleSpec{Description: "Does everything.", Rules: []*v1.RoleRule{{Verbs: []string{Any}, Kinds: []string{Any}}}},
		},
	}
})

// declared are the rules that grant the methods of some callers. Kinds with the same verbs share a rule.
func declared(callers ...v1.Method_Caller) []*v1.RoleRule {
	of := map[string]verbs{}
	for m := range api.Methods() {
		if m.Kind == api.AnyKind || !slices.Contains(callers, m.Caller) {
			continue
		}
		for _, verb := range m.Verbs {
			of[m.Kind] |= bitOf[verb]
		}
	}
	if slices.Contains(callers, v1.Method_OPERATOR) {
		of["image"] |= bitOf[api.VerbCreate] // by pushing to the registry, which is no method
	}
	var all []*v1.RoleRule
	ruleOf := map[verbs]*v1.RoleRule{}
	for _, kind := range api.GrantableKinds() {
		granted := of[kind]
		if granted == 0 {
			continue
		}
		if ruleOf[granted] == nil {
			rule := &v1.RoleRule{}
			for _, verb := range api.Verbs() {
				if granted&bitOf[verb] != 0 {
					rule.Verbs = append(rule.Verbs, verb)
				}
			}
			ruleOf[granted] = rule
			all = append(all, rule)
		}
		ruleOf[granted].Kinds = append(ruleOf[granted].Kinds, kind)
	}
	return all
}

// compiledBuiltin are the rules of the roles that always exist: in all namespaces, and in one.
var compiledBuiltin = sync.OnceValue(func() map[*v1.Role][2]*rules {
	all := map[*v1.Role][2]*rules{}
	for _, role := range builtin() {
		all[role] = [2]*rules{compile(role.GetSpec(), false), compile(role.GetSpec(), true)}
	}
	return all
})

func compiled(role *v1.Role, inOne bool) *rules {
	done, always := compiledBuiltin()[role]
	switch {
	case !always:
		return compile(role.GetSpec(), inOne)
	case inOne:
		return done[1]
	}
	return done[0]
}

// Builtin yields the roles that always exist, from the smallest to the largest. They must not be changed.
func Builtin() iter.Seq[*v1.Role] { return slices.Values(builtin()) }

// IsBuiltin reports whether a role always exists.
func IsBuiltin(name string) bool { return Named(name, func(string) *v1.Role { return nil }) != nil }

// Named returns a role that always exists, or the one that is found; nil if there is none.
func Named(name string, find func(string) *v1.Role) *v1.Role {
	for _, role := range builtin() {
		if role.GetMetadata().GetName() == name {
			return role
		}
	}
	return find(name)
}

// Sufficient returns the names of the roles that permit one of some verbs on a kind, the smallest first. Of equal ones, those that
// always exist come first.
func Sufficient(verbs []string, kind, namespace string, custom iter.Seq[*v1.Role]) []string {
	type candidate struct {
		name string
		size int
	}
	var all []candidate
	consider := func(role *v1.Role) {
		granted := compiled(role, namespace != "")
		for _, verb := range verbs {
			if bit := bitOf[verb]; bit != 0 && granted.includes(bit, kind) && (namespace == "" || Scoped(verb, kind)) {
				all = append(all, candidate{role.GetMetadata().GetName(), granted.size()})
				return
			}
		}
	}
	for role := range Builtin() {
		consider(role)
	}
	for role := range custom {
		consider(role)
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return a.size - b.size })
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.name
	}
	return names
}
