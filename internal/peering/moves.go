package peering

import (
	"context"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// noteMoves tells keepAddresses that servers have moved.
func (p *Peers) noteMoves(before *state.Snapshot, news state.News) {
	if slices.ContainsFunc(news.Changes, isMove) || news.Resync && anyMoved(before, news.Snapshot) {
		select {
		case p.moved <- struct{}{}:
		default:
		}
	}
}

// anyMoved reports whether a server has another address in a later state.
func anyMoved(before, after *state.Snapshot) bool {
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

// keepAddresses takes a snapshot whenever a server has moved, until ctx ends. After a start a server looks for the
// others where the newest snapshot says: later log entries count only once it has found them and they agree.
func (p *Peers) keepAddresses(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.moved:
		}
		if err := p.Consensus.Snapshot(ctx); err != nil && ctx.Err() == nil {
			p.logger.Warn("where a server is now is not kept for the next start", "error", err)
		}
	}
}
