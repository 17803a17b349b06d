package core

import (
	"context"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
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
	// TokenUID is set if the caller used an API token.
	TokenUID string
	// Expires is when the credentials end; zero for certificates.
	Expires time.Time
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

// Can reports whether the caller may do something with a kind of object, such as "update" with "workload". The namespace
// is empty for all of them, and for kinds that are in none.
func (p Principal) Can(verb, kind, namespace string) bool {
	switch p.Role {
	case RoleAdmin:
		return true
	case RoleOperator:
		return verb != "privileged" || kind != "workload"
	case RoleViewer:
		return verb == "get" || verb == "logs"
	}
	return false
}
