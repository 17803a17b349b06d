// Package authz measures what it costs to decide whether a caller may do something: with many custom roles and bindings,
// for a user with roles in many namespaces.
//
// It must not know how figures are recorded.
package authz

import (
	"fmt"
	"slices"
	"time"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
)

const (
	// customRoles, bindings and namespaces are how much of each there is.
	customRoles, bindings, namespaces = 100, 1000, 100
	// calls is how many decisions are measured, in each of some rounds.
	calls, rounds = 200_000, 5
)

// Cost returns how long one decision takes, and how long it takes to add up the roles of the caller, which happens once
// after each change of a role or a binding. Both are medians.
func Cost() (decision, adding time.Duration, err error) {
	custom := map[string]*v1.Role{}
	for i := range customRoles {
		name := fmt.Sprintf("role-%d", i)
		custom[name] = &v1.Role{Metadata: &v1.Metadata{Name: name}, Spec: &v1.RoleSpec{Rules: []*v1.RoleRule{
			{Verbs: []string{api.VerbGet, api.VerbLogs}, Kinds: []string{"workload", "replica", "event"}},
			{Verbs: []string{api.VerbUpdate}, Kinds: []string{api.GrantableKinds()[i%len(api.GrantableKinds())]}},
		}}}
	}
	var all []*v1.RoleBinding
	for i := range bindings {
		all = append(all, &v1.RoleBinding{Spec: &v1.RoleBindingSpec{
			Role: fmt.Sprintf("role-%d", i%customRoles), Namespace: fmt.Sprintf("ns-%d", i%namespaces),
			Users: []string{fmt.Sprintf("user-%d", i%10), "alice"},
		}})
	}
	var decisions, additions []time.Duration
	for range rounds {
		started := time.Now()
		p := core.Principal{TokenUID: "t", Permissions: roles.Of(roles.Subject{User: "alice"}, func(name string) *v1.Role { return custom[name] }, slices.Values(all))}
		additions = append(additions, time.Since(started))
		started = time.Now()
		for i := range calls {
			if !p.Can(api.VerbGet, "workload", "ns-99") || p.Can(api.VerbDelete, "workload", "ns-99") {
				return 0, 0, fmt.Errorf("decision %d is wrong", i)
			}
		}
		decisions = append(decisions, time.Since(started)/(2*calls))
	}
	slices.Sort(decisions)
	slices.Sort(additions)
	return decisions[rounds/2], additions[rounds/2], nil
}
