package authority

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cloudless/cloudless/internal/state"
)

// Proposer changes the state.
type Proposer interface {
	Propose(ctx context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error)
}

// Loop takes the steps of rotations while this server leads.
type Loop struct {
	Keys
	Store    *state.Store
	Proposer Proposer
	Logger   *slog.Logger
	// Self is the uid of this server.
	Self string
	// Reports asks the members. Changed has a value when a node has reported something else.
	Reports func(ctx context.Context) Reports
	Changed <-chan struct{}
}

// ask is how often the servers are asked while a rotation runs.
const ask = 250 * time.Millisecond

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	changed := make(chan struct{}, 1)
	g.Go(func() error { return l.follow(ctx, changed) })
	g.Go(func() error { return l.run(ctx, changed) })
	return g.Wait()
}

func (l *Loop) run(ctx context.Context, changed <-chan struct{}) error {
	resealer := &Resealer{Sealer: l.Sealer}
	ticker := time.NewTicker(ask)
	defer ticker.Stop()
	for {
		heard, again := l.Changed, ticker.C
		if Running(l.Store.Snapshot()) {
			if err := l.tick(ctx, resealer); err != nil {
				return err
			}
		} else {
			heard, again, resealer.done = nil, nil, nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changed:
		case <-heard:
		case <-again:
		}
	}
}

// follow reports changes of the keys.
func (l *Loop) follow(ctx context.Context, changed chan<- struct{}) error {
	for feed := l.Store.Follow(); ; {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		concerns := news.Resync || slices.ContainsFunc(news.Changes, func(c state.Change) bool {
			return c.Kind == state.KindAuthority || c.Kind == state.KindKeyEncryptionKey
		})
		if !concerns {
			continue
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}

// Running reports whether a rotation runs or is to begin.
func Running(snap *state.Snapshot) bool {
	a, k := snap.Authority(), snap.KeyEncryptionKey()
	return a.GetStep() != "" || a.GetAgain() != "" || k.GetStep() != "" || k.GetAgain() != ""
}

func (l *Loop) tick(ctx context.Context, resealer *Resealer) error {
	reports := l.Reports(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	now := time.Now().UTC()
	var due state.Batch
	if err := l.Tick(now, l.Store.Snapshot(), reports, l.Self, resealer, &due); err != nil {
		// The server may not have followed the newest step yet.
		l.Logger.Warn("the rotation of the cluster's keys waits", "error", err)
		return nil
	}
	if due.Len() == 0 {
		return nil
	}
	_, err := l.Proposer.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		return l.Tick(now, snap, reports, l.Self, resealer, b)
	})
	return err
}
