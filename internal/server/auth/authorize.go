package auth

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/api"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
)

var (
	readers  = []string{core.RoleViewer, core.RoleOperator, core.RoleAdmin}
	writers  = []string{core.RoleOperator, core.RoleAdmin}
	admins   = []string{core.RoleAdmin}
	everyone = []string{core.RoleViewer, core.RoleOperator, core.RoleAdmin, core.RoleNode, core.RoleServer}
)

// rolesOf are the roles of the callers that the contract names. Nobody has a role
// for any other method: open methods prove their callers themselves.
var rolesOf = map[v1.Method_Caller][]string{
	v1.Method_VIEWER:        readers,
	v1.Method_OPERATOR:      writers,
	v1.Method_ADMIN:         admins,
	v1.Method_ANY_IDENTITY:  everyone,
	v1.Method_NODE:          {core.RoleNode},
	v1.Method_SERVER:        {core.RoleServer},
	v1.Method_MEMBER_SERVER: {core.RoleServer},
}

// Permitted returns the roles that may call a method. It is empty for methods that
// the contract does not declare: nobody may call them.
func Permitted(method string) []string {
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
	principal core.Principal
	what      string
	roles     []string
}

func (f *forbidden) Error() string {
	if len(f.roles) == 0 {
		return fmt.Sprintf("nobody may %s: the contract declares no caller for it", f.what)
	}
	refusal := fmt.Sprintf("%s has role %q, which may not %s; it needs role %s",
		f.principal.ID.Name(), f.principal.Role, f.what, strings.Join(f.roles, " or "))
	if !slices.Contains(f.roles, core.RoleAdmin) {
		return refusal // only machines may, and no API token makes its bearer one
	}
	return refusal + ": ask an admin for a token made with: cloudless token create --role " + f.roles[0]
}

// Code implements the interface by which errors say their codes.
func (*forbidden) Code() codes.Code { return codes.PermissionDenied }

// Authorize refuses a caller that may not call a method.
func Authorize(p core.Principal, method string) error {
	if slices.Contains(Permitted(method), p.Role) {
		return nil // before a refusal is worded
	}
	return AuthorizeTo(p, method, "call "+strings.TrimPrefix(method, "/"))
}

// AuthorizeTo is the same for what a method does, which the refusal says in words.
func AuthorizeTo(p core.Principal, method, what string) error {
	roles := Permitted(method)
	if slices.Contains(roles, p.Role) {
		return nil
	}
	return &forbidden{principal: p, what: what, roles: roles}
}

// authorizeEarly is the same before the message is read. Methods that do not exist
// and those that need no identity are answered later.
func authorizeEarly(p core.Principal, method string) error {
	if m, declared := api.MethodOf(method); !declared || m.IsOpen() {
		return nil
	}
	return Authorize(p, method)
}

// AuthorizeHTTP is the same for what is served besides the API: the registry
// may be read by all and written by writers, everything else is for readers.
func AuthorizeHTTP(p core.Principal, registry, write bool) error {
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
