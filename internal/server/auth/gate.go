package auth

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/server/core"
)

// gate decides whether a stream may go on: by its first message, and again whenever what its caller may do changes.
type gate struct {
	guard  *Guard
	method string

	mu      sync.Mutex
	need    core.Need
	limited bool
	passed  bool
	as      core.Principal // when the first message came
}

// first refuses the first message of a stream by what it is about.
func (g *gate) first(ctx context.Context, message any) error {
	g.mu.Lock()
	passed := g.passed
	g.passed = true
	g.mu.Unlock()
	caller := core.Caller(ctx)
	if passed || !caller.IsUser() {
		return nil
	}
	if _, err := g.guard.admitRequest(ctx, g.method, message); err != nil {
		return err
	}
	g.mu.Lock()
	g.need, g.limited = needOf(g.method, message)
	g.as = caller
	g.mu.Unlock()
	now, ok := g.guard.Auth.stillValid(caller)
	if !ok {
		return unauthenticated(ErrUnknownToken)
	}
	return g.still(now) // the permission may have changed before this stream was bound
}

// still refuses a stream whose caller may not do any more what it does. What a list or a watch shows depends on what its
// caller may see: it has to begin anew.
func (g *gate) still(now core.Principal) error {
	if err := g.guard.Auth.Authorize(now, g.method); err != nil {
		return changed{err}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.limited {
		return nil
	}
	if err := g.guard.Auth.permit(now, g.need, g.method); err != nil {
		return changed{err}
	}
	if g.need.Verbs[0] == "get" && !now.Permissions.Equal(g.as.Permissions) {
		return changed{core.Refuse(codes.Unavailable, "what this caller may do has changed; begin again")}
	}
	return nil
}

// changed ends a stream because the permissions of its caller have changed.
type changed struct{ error }

func (c changed) Unwrap() error { return c.error }

func isChange(err error) bool {
	_, ok := errors.AsType[changed](err)
	return ok
}
