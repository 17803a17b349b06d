package cron

import (
	"context"
	"errors"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// Loop ticks when a time has come and when a cron or one of its jobs has changed, while
// this server leads.
type Loop struct {
	Store    *state.Store
	Proposer Proposer
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	feed := l.Store.Follow()
	for next := (time.Time{}); ; {
		err := wait(ctx, feed, next)
		if err != nil {
			return err
		}
		if next, err = l.settle(ctx); err != nil {
			return err
		}
	}
}

// settle ticks until nothing is due, and returns when something will be.
func (l *Loop) settle(ctx context.Context) (next time.Time, err error) {
	for {
		now := time.Now().UTC()
		batch, next := Tick(now, l.Store.Snapshot(), state.NewUID)
		if batch.Len() == 0 {
			return next, nil
		}
		if _, err := l.Proposer.Propose(ctx, batch.Transaction(now)); err != nil && !state.MovedOn(err) {
			return time.Time{}, err
		}
	}
}

// MaxSleep is the longest sleep of the loop. The clock may be set meanwhile, and a suspended
// machine wakes up later than any timer knows.
const MaxSleep = time.Minute

var errElapsed = errors.New("a time has come")

// wait returns when a change concerns crons, or when it is time for the next tick.
func wait(ctx context.Context, feed *state.Follower, next time.Time) error {
	within := ctx
	if !next.IsZero() {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeoutCause(ctx, min(MaxSleep, time.Until(next)), errElapsed)
		defer cancel()
	}
	for {
		news, err := feed.Next(within)
		switch {
		case errors.Is(err, errElapsed):
			return nil
		case err != nil:
			return err
		case news.Resync || Affected(news.Changes):
			return nil
		}
	}
}

// Affected reports whether a cron or one of its jobs has changed.
func Affected(changes []state.Change) bool {
	for _, c := range changes {
		if c.Kind != state.KindWorkload {
			continue
		}
		for _, object := range []state.Object{c.Old, c.New} {
			if w, ok := object.(*v1.Workload); ok && w != nil && (w.GetSpec().GetKind() == spec.KindCron || w.GetStatus().GetOwnerUid() != "") {
				return true
			}
		}
	}
	return false
}
