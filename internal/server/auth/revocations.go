package auth

import (
	"context"
	"sync"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// Revocations ends the streams of a token when the token is revoked or expires.
type Revocations struct {
	mu      sync.Mutex
	next    int
	streams map[string]map[int]context.CancelCauseFunc
}

// NewRevocations returns an empty set of streams.
func NewRevocations() *Revocations {
	return &Revocations{streams: map[string]map[int]context.CancelCauseFunc{}}
}

// Bind ends the context of a stream when the token of its caller is revoked or expires.
func (r *Revocations) Bind(ctx context.Context, p core.Principal) (context.Context, func()) {
	if p.TokenUID == "" {
		return ctx, func() {}
	}
	ctx, stopTimer := context.WithDeadlineCause(ctx, p.Expires, ErrUnknownToken)
	ctx, cancel := context.WithCancelCause(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	key := r.next
	if r.streams[p.TokenUID] == nil {
		r.streams[p.TokenUID] = map[int]context.CancelCauseFunc{}
	}
	r.streams[p.TokenUID][key] = cancel
	return ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.streams[p.TokenUID], key)
		if len(r.streams[p.TokenUID]) == 0 {
			delete(r.streams, p.TokenUID)
		}
		cancel(nil)
		stopTimer()
	}
}

// Revoke ends the streams of a token.
func (r *Revocations) Revoke(tokenUID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cancel := range r.streams[tokenUID] {
		cancel(ErrUnknownToken)
	}
}

// RevokeMissing does the same for every token that no longer exists.
func (r *Revocations) RevokeMissing(snap *state.Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, streams := range r.streams {
		if snap.Token(uid) != nil {
			continue
		}
		for _, cancel := range streams {
			cancel(ErrUnknownToken)
		}
	}
}
