package app

import (
	"context"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// noteMoves lets keepPlaces know of servers that are elsewhere now.
func (p *controlPlane) noteMoves(before *state.Snapshot, news state.News) {
	if slices.ContainsFunc(news.Changes, isMove) || news.Resync && moved(before, news.Snapshot) {
		select {
		case p.fellows.moved <- struct{}{}:
		default:
		}
	}
}

// moved reports whether a server is elsewhere in a later state.
func moved(before, after *state.Snapshot) bool {
	for was := range before.Servers("") {
		is := after.Server(was.GetMetadata().GetUid())
		if is != nil && is.GetSpec().GetAddress() != was.GetSpec().GetAddress() {
			return true
		}
	}
	return false
}

func isMove(c state.Change) bool {
	before, was := c.Old.(*v1.Server)
	after, is := c.New.(*v1.Server)
	return was && is && before.GetSpec().GetAddress() != after.GetSpec().GetAddress()
}

// keepPlaces takes a snapshot whenever a server has moved, until ctx ends. After a
// start the others are looked for where the newest snapshot says that they are:
// what came after it counts only when they have been found and agree on it.
func (p *controlPlane) keepPlaces(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.fellows.moved:
		}
		if err := p.consensus.Snapshot(ctx); err != nil && ctx.Err() == nil {
			p.logger.Warn("where a server is now is not kept for the next start", "error", err)
		}
	}
}
