package sessions

import (
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// unitSessions are sessions with an empty state that cannot be changed.
func unitSessions() *Sessions {
	return New(Options{Core: &core.Core{UID: "s-1", Store: state.New(), Clock: time.Now}})
}

// storeWith returns a state that holds these objects.
func storeWith(t *testing.T, objects ...state.Object) *state.Store {
	t.Helper()
	store := state.New()
	var b state.Batch
	for _, o := range objects {
		b.Create(o)
	}
	_, err := store.Apply(1, b.Transaction(time.Now()))
	must.Succeed(t, err)
	return store
}
