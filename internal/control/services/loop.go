package services

import (
	"context"
	"iter"
	"maps"
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

// Loop ticks for the workloads and services that have changed, while this server leads.
type Loop struct {
	Store    *state.Store
	Proposer Proposer
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	feed := l.Store.Follow()
	for {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		names, all := Concerned(news.Changes)
		if err := l.settle(ctx, names, all || news.Resync); err != nil {
			return err
		}
	}
}

// settle ticks until nothing is due for the names, or for all names.
func (l *Loop) settle(ctx context.Context, names map[Name]bool, all bool) error {
	for all || len(names) > 0 {
		now, snap := time.Now().UTC(), l.Store.Snapshot()
		batch, more := Tick(now, snap, chosen(snap, names, all), state.NewUID)
		if batch.Len() == 0 {
			return nil
		}
		_, err := l.Proposer.Propose(ctx, batch.Transaction(now))
		switch {
		case err != nil && !state.MovedOn(err):
			return err
		case err == nil && !more:
			return nil
		}
	}
	return nil
}

func chosen(snap *state.Snapshot, names map[Name]bool, all bool) iter.Seq[Name] {
	if all {
		return All(snap)
	}
	return maps.Keys(names)
}

// Concerned returns the names whose service may have to change. All names are concerned if addresses may have become
// free for services that have none: by a deleted service, or by another configuration.
func Concerned(changes []state.Change) (names map[Name]bool, all bool) {
	names = map[Name]bool{}
	for _, c := range changes {
		switch c.Kind {
		case state.KindCluster:
			all = true
		case state.KindService:
			all = all || c.New == nil
			names[nameOf(either(c))] = true
		case state.KindWorkload:
			if hasService(c.Old) || hasService(c.New) {
				names[nameOf(either(c))] = true
			}
		}
	}
	return names, all
}

func hasService(o state.Object) bool {
	w, ok := o.(*v1.Workload)
	return ok && spec.HasService(w.GetSpec())
}

func either(c state.Change) state.Object {
	if c.New != nil {
		return c.New
	}
	return c.Old
}
