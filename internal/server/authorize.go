package server

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

var (
	readers  = []string{roleViewer, roleOperator, roleAdmin}
	writers  = []string{roleOperator, roleAdmin}
	admins   = []string{roleAdmin}
	everyone = []string{roleViewer, roleOperator, roleAdmin, roleNode, roleServer}
)

// rolesOf are the roles of the callers that the contract names. Nobody has a role
// for any other method: open methods prove their callers themselves.
var rolesOf = map[v1.Method_Caller][]string{
	v1.Method_VIEWER:        readers,
	v1.Method_OPERATOR:      writers,
	v1.Method_ADMIN:         admins,
	v1.Method_ANY_IDENTITY:  everyone,
	v1.Method_NODE:          {roleNode},
	v1.Method_SERVER:        {roleServer},
	v1.Method_MEMBER_SERVER: {roleServer},
}

// permitted returns the roles that may call a method. It is empty for methods that
// the contract does not declare: nobody may call them.
func permitted(method string) []string {
	m, _ := api.MethodOf(method)
	return rolesOf[m.Caller]
}

// open reports whether a method is called without an identity.
func open(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsOpen()
}

// forMembers reports whether servers may call a method only once the state lists
// them. They need the others before that, to find their place in the cluster.
func forMembers(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsForMembers()
}

// forbidden is a refusal to an identity that is known.
type forbidden struct {
	principal Principal
	what      string
	roles     []string
}

func (f *forbidden) Error() string {
	if len(f.roles) == 0 {
		return fmt.Sprintf("nobody may %s: the contract declares no caller for it", f.what)
	}
	refusal := fmt.Sprintf("%s has role %q, which may not %s; it needs role %s",
		f.principal.ID.Name(), f.principal.Role, f.what, strings.Join(f.roles, " or "))
	if !slices.Contains(f.roles, roleAdmin) {
		return refusal // only machines may, and no API token makes its bearer one
	}
	return refusal + ": ask an admin for a token made with: cloudless token create --role " + f.roles[0]
}

func authorize(p Principal, method string) error {
	roles := permitted(method)
	if slices.Contains(roles, p.Role) {
		return nil
	}
	return &forbidden{principal: p, what: "call " + strings.TrimPrefix(method, "/"), roles: roles}
}

// authorizeEarly is the same before the message is read. Methods that do not exist
// and those that need no identity are answered later.
func authorizeEarly(p Principal, method string) error {
	if m, declared := api.MethodOf(method); !declared || m.IsOpen() {
		return nil
	}
	return authorize(p, method)
}

// authorizeHTTP is the same for what is served besides the API: the registry
// may be read by all and written by writers, everything else is for readers.
func authorizeHTTP(p Principal, registry, write bool) error {
	roles, what := readers, "read this"
	switch {
	case registry && write:
		roles, what = writers, "push images"
	case registry:
		roles, what = everyone, "pull images"
	}
	if slices.Contains(roles, p.Role) {
		return nil
	}
	return &forbidden{principal: p, what: what, roles: roles}
}
