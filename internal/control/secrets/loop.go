package secrets

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

// Loop ticks when a time has come and when something about secrets has changed, while this server leads.
type Loop struct {
	Store    *state.Store
	Proposer Proposer
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	feed := l.Store.Follow()
	sweep := true
	for {
		next, err := l.settle(ctx, sweep)
		if err != nil {
			return err
		}
		if sweep, err = wait(ctx, feed, next); err != nil {
			return err
		}
	}
}

// settle ticks until nothing is due, and returns when something will be.
func (l *Loop) settle(ctx context.Context, sweep bool) (next time.Time, err error) {
	for {
		now := time.Now().UTC()
		batch, next := Tick(now, l.Store.Snapshot(), sweep, state.NewUID)
		if batch.Len() == 0 {
			return next, nil
		}
		if _, err := l.Proposer.Propose(ctx, batch.Transaction(now)); err != nil && !state.MovedOn(err) {
			return time.Time{}, err
		}
	}
}

// maxSleep is the longest sleep of the loop: the clock may be set meanwhile.
const maxSleep = time.Minute

var errElapsed = errors.New("a time has come")

// wait returns when a change concerns secrets, or when it is time for the next tick.
func wait(ctx context.Context, feed *state.Follower, next time.Time) (sweep bool, err error) {
	within := ctx
	if !next.IsZero() {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeoutCause(ctx, min(maxSleep, max(0, time.Until(next))), errElapsed)
		defer cancel()
	}
	for {
		news, err := feed.Next(within)
		switch {
		case errors.Is(err, errElapsed):
			return false, nil
		case err != nil:
			return false, err
		case news.Resync:
			return true, nil
		}
		if due, sweep := affected(news.Snapshot, news.Changes); due {
			return sweep, nil
		}
	}
}

// affected reports whether changes concern secrets, and whether receipts may have lost what they are about.
func affected(snap *state.Snapshot, changes []state.Change) (due, sweep bool) {
	if snap.Count(state.KindSecret)+snap.Count(state.KindSecretReceipt) == 0 {
		return false, false
	}
	for _, c := range changes {
		switch c.Kind {
		case state.KindSecret:
			due, sweep = true, sweep || c.New == nil
		case state.KindDeployment: // it may be the last one that could return to an old version
			before, _ := c.Old.(*v1.Deployment)
			after, _ := c.New.(*v1.Deployment)
			due = due || spec.DeploymentOpen(before) && !spec.DeploymentOpen(after)
		case state.KindWorkload:
			after, _ := c.New.(*v1.Workload)
			due = due || len(after.GetSpec().GetSecrets()) > 0
		case state.KindReplica:
			before, _ := c.Old.(*v1.Replica)
			after, _ := c.New.(*v1.Replica)
			if before == nil || after != nil && !spec.Ended(after.GetStatus().GetPhase()) || after != nil && spec.Ended(before.GetStatus().GetPhase()) {
				continue
			}
			due, sweep = true, sweep || after == nil
		}
	}
	return due, sweep
}
