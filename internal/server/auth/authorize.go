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

// rolesOf maps the callers that a method can declare to roles. Open methods need no role:
// they authenticate their callers themselves.
var rolesOf = map[v1.Method_Caller][]string{
	v1.Method_VIEWER:        readers,
	v1.Method_OPERATOR:      writers,
	v1.Method_ADMIN:         admins,
	v1.Method_ANY_IDENTITY:  everyone,
	v1.Method_NODE:          {core.RoleNode},
	v1.Method_SERVER:        {core.RoleServer},
	v1.Method_MEMBER_SERVER: {core.RoleServer},
}

// Permitted returns the roles that may call a method. It is empty for methods without a
// declaration: no caller may call them.
func Permitted(method string) []string {
	m, _ := api.MethodOf(method)
	return rolesOf[m.Caller]
}

// open reports whether a method needs no identity.
func open(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsOpen()
}

// asksOnly reports whether a method needs no identity and its success proves none.
func asksOnly(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsOpen() && m.Reads
}

// forMembers reports whether servers may call a method only once the state lists them.
// Before that, they need a few methods to join the cluster.
func forMembers(method string) bool {
	m, ok := api.MethodOf(method)
	return ok && m.IsForMembers()
}

// forbidden refuses an authenticated caller.
type forbidden struct {
	principal core.Principal
	what      string
	roles     []string
}

func (f *forbidden) Error() string {
	if len(f.roles) == 0 {
		return fmt.Sprintf("no caller may %s: the API declares none for it", f.what)
	}
	refusal := fmt.Sprintf("%s has role %q, which may not %s; it needs role %s",
		f.principal.ID.Name(), f.principal.Role, f.what, strings.Join(f.roles, " or "))
	if !slices.Contains(f.roles, core.RoleAdmin) {
		return refusal // only machines may call it, and no API token can help
	}
	return refusal + ": ask an admin for a token made with: cloudless token create --role " + f.roles[0]
}

// Code implements the interface by which errors carry their codes.
func (*forbidden) Code() codes.Code { return codes.PermissionDenied }

// Authorize refuses a caller that may not call a method.
func Authorize(p core.Principal, method string) error {
	if slices.Contains(Permitted(method), p.Role) {
		return nil // without preparing the text of a refusal
	}
	if m, _ := api.MethodOf(method); m.Caller == v1.Method_ANY_IDENTITY && p.TokenUID != "" {
		return nil // whatever its role
	}
	return AuthorizeTo(p, method, "call "+strings.TrimPrefix(method, "/"))
}

// AuthorizeTo does the same for one effect of a method, which the refusal names.
func AuthorizeTo(p core.Principal, method, what string) error {
	roles := Permitted(method)
	if slices.Contains(roles, p.Role) {
		return nil
	}
	return &forbidden{principal: p, what: what, roles: roles}
}

// authorizeEarly does the same before the message is read. Methods that do not exist and
// methods that need no identity are answered later.
func authorizeEarly(p core.Principal, method string) error {
	if m, declared := api.MethodOf(method); !declared || m.IsOpen() {
		return nil
	}
	return Authorize(p, method)
}

// AuthorizeHTTP does the same for everything beside the API: every role may read the
// registry and writers may write it; everything else is for readers.
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
