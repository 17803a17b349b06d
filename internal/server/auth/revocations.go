package auth

import (
	"context"
	"sync"

	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// Revocations ends the streams of a token when the token is revoked or expires, or when its bearer may not do any more
// what the stream does.
type Revocations struct {
	mu      sync.Mutex
	next    int
	streams map[string]map[int]boundStream
}

type boundStream struct {
	as  core.Principal
	end context.CancelCauseFunc
	// still refuses a caller that may not do any more what the stream does; nil refuses none.
	still func(core.Principal) error
}

// NewRevocations returns an empty set of streams.
func NewRevocations() *Revocations {
	return &Revocations{streams: map[string]map[int]boundStream{}}
}

// Bind ends the context of a stream when the token of its caller is revoked or expires, or when still refuses the caller.
func (r *Revocations) Bind(ctx context.Context, p core.Principal, still func(core.Principal) error) (context.Context, func()) {
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
		r.streams[p.TokenUID] = map[int]boundStream{}
	}
	r.streams[p.TokenUID][key] = boundStream{p, cancel, still}
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
	for _, stream := range r.streams[tokenUID] {
		stream.end(ErrUnknownToken)
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
		for _, stream := range streams {
			stream.end(ErrUnknownToken)
		}
	}
}

// Recheck ends the streams whose callers may not do any more what they do. Changed says that it may concern only one
// token; all if it is empty.
func (r *Revocations) Recheck(a *Authenticator, changed string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, streams := range r.streams {
		if changed != "" && changed != uid {
			continue
		}
		for _, stream := range streams {
			now, err := a.again(stream.as)
			switch {
			case err != nil:
				stream.end(ErrUnknownToken)
			case stream.still != nil:
				if err := stream.still(now); err != nil {
					stream.end(err)
				}
			}
		}
	}
}
