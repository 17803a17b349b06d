package core

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Need is what a caller must be permitted to do: one of some verbs with a kind, in a namespace, or in all of them if it is
// empty.
type Need struct {
	Verbs           []string
	Kind, Namespace string
	// Somewhere is sufficient instead of the namespace.
	Somewhere bool
}

// Met reports whether a caller has the permission.
func (n Need) Met(p Principal) bool {
	for _, verb := range n.Verbs {
		if n.Somewhere && p.Permissions.CanSomewhere(verb, n.Kind) || !n.Somewhere && p.Can(verb, n.Kind, n.Namespace) {
			return true
		}
	}
	return false
}

// String is the permission for people, such as "update on workload in namespace shop".
func (n Need) String() string {
	text := strings.Join(n.Verbs, " or ") + " on " + n.Kind
	switch {
	case n.Kind == roles.Any:
		return strings.Join(n.Verbs, " or ") + " on some kind"
	case n.Namespace != "":
		return text + " in namespace " + n.Namespace
	}
	return text
}

// Forbidden refuses an authenticated caller.
type Forbidden struct{ message string }

func (f *Forbidden) Error() string { return f.message }

// Code implements the interface by which errors carry their codes.
func (*Forbidden) Code() codes.Code { return codes.PermissionDenied }

// NewForbidden refuses a caller in words of its own.
func NewForbidden(format string, args ...any) *Forbidden {
	return &Forbidden{message: fmt.Errorf(format, args...).Error()}
}

// Permit refuses a caller that lacks a permission to do what the text says, such as "delete workload web". The refusal names
// the smallest role that would be sufficient.
func Permit(snap *state.Snapshot, p Principal, need Need, what string) error {
	if need.Met(p) {
		return nil
	}
	return NewForbidden("%s may not %s: it needs %s, and %s; %s", p.ID.Name(), what, need, held(p), WayOut(snap, need))
}

// held says which roles a caller has.
func held(p Principal) string {
	switch granted := p.Permissions.Grants(); {
	case p.Permissions == nil:
		return fmt.Sprintf("has role %q by its certificate", p.Role)
	case len(granted) == 0:
		return "has no role"
	default:
		words := make([]string, len(granted))
		for i, g := range granted {
			if words[i] = fmt.Sprintf("%q", g.Role); g.Namespace != "" {
				words[i] += " in namespace " + g.Namespace
			}
		}
		return "has role " + strings.Join(words, " and ")
	}
}

// WayOut says which role would be sufficient, and how to get it.
func WayOut(snap *state.Snapshot, need Need) string {
	sufficient := roles.Sufficient(need.Verbs, need.Kind, need.Namespace, snap.Roles(""))
	if len(sufficient) == 0 && need.Namespace != "" {
		need.Namespace = "" // no role in that namespace alone would do
		sufficient = roles.Sufficient(need.Verbs, need.Kind, "", snap.Roles(""))
	}
	if len(sufficient) == 0 {
		sufficient = []string{roles.Viewer} // of any kind, by any role
	}
	where := ""
	if need.Namespace != "" {
		where = " in namespace " + need.Namespace
	}
	return fmt.Sprintf("role %s%s would be sufficient: ask an admin to bind it (%s) or for a token (%s)",
		sufficient[0], where, spec.Hint(need.Namespace, "cloudless role bind "+sufficient[0]+" --user NAME"),
		spec.Hint(need.Namespace, "cloudless token create --role "+sufficient[0]))
}

// Require refuses a call whose caller may not do something in a handler. What this server does for itself, without a
// caller, is not refused.
func (c *Core) Require(ctx context.Context, verb, kind, namespace, what string) error {
	p := Caller(ctx)
	if p.ID.IsZero() {
		return nil
	}
	return Permit(c.Store.Snapshot(), p, Need{Verbs: []string{verb}, Kind: kind, Namespace: namespace}, what)
}
