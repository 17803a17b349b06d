package core

import (
	"context"
	"time"

	"github.com/cloudless/cloudless/api"
	"github.com/cloudless/cloudless/internal/identity"
	"github.com/cloudless/cloudless/internal/roles"
)

// The roles that a caller can have.
const (
	RoleAdmin    = "admin"
	RoleOperator = "operator"
	RoleViewer   = "viewer"
	RoleNode     = "node"
	RoleServer   = "server"
)

// Principal is an authenticated caller.
type Principal struct {
	ID   identity.ID
	Role string
	// TokenUID is set if the caller used an API token, and SecretID is the public part of the secret that was used.
	TokenUID, SecretID string
	// Permissions is what the roles of the token permit; nil for certificates, whose bearers call methods by their kind.
	Permissions *roles.Permissions
	// Expires is when the credentials end; zero for certificates.
	Expires time.Time
	// Namespace is the only one in which the role of an API token counts; all of them, and what is in none, if empty.
	Namespace string
	// User and Groups are set if the token is that of a user who has logged in. Such a caller may have no role but those
	// that bindings give.
	User   string
	Groups []string
}

type principalKey struct{}

// WithPrincipal returns the context of a call whose caller was authenticated.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Caller returns the principal that the interceptors authenticated.
func Caller(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}

// Name is the name of the caller for people: that of the user who has logged in, or else that of the token or member.
func (p Principal) Name() string {
	if p.User != "" {
		return p.User
	}
	return p.ID.Name()
}

// Can reports whether the caller may do something with a kind of object, such as "update" with "workload". The namespace
// is empty for all of them, and for kinds that are in none.
func (p Principal) Can(verb, kind, namespace string) bool {
	return p.Permissions.Can(verb, kind, namespace)
}

// IsUser reports whether the caller is the bearer of an API token.
func (p Principal) IsUser() bool { return p.TokenUID != "" }

// Sees reports whether a caller may know that objects of a kind exist in a namespace. What this server does for itself,
// without a caller, and what members do is not limited by roles.
func (p Principal) Sees(kind, namespace string) bool {
	return !p.IsUser() || p.Can(api.VerbGet, kind, namespace)
}
