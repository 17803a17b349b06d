package core

import (
	"context"
	"time"

	"github.com/cloudless/cloudless/internal/identity"
)

// The roles a caller can have.
const (
	RoleAdmin    = "admin"
	RoleOperator = "operator"
	RoleViewer   = "viewer"
	RoleNode     = "node"
	RoleServer   = "server"
)

// Principal is who is calling, once that has been proved.
type Principal struct {
	ID   identity.ID
	Role string
	// TokenUID is set when the proof was an API token.
	TokenUID string
	// Expires is when the proof ends, zero for certificates.
	Expires time.Time
}

type principalKey struct{}

// WithPrincipal is the context of a call whose caller was proved.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// Caller returns the principal that the interceptors proved.
func Caller(ctx context.Context) Principal {
	p, _ := ctx.Value(principalKey{}).(Principal)
	return p
}
