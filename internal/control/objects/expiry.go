package objects

import (
	"context"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// expireEvery is how often the loop looks for what has expired and for lists that nothing refers to.
	expireEvery = time.Minute
	// expireBatch is how many objects one entry removes.
	expireBatch = 256
	// releaseBatch is how many lists one entry gives up; each may have a thousand chunks.
	releaseBatch = 8
	// expireShare is how much longer the loop pauses between batches than one takes: clients come first.
	expireShare = 2
)

// expire removes objects, uploads and staged lists whose time is over, and gives up lists that nothing refers to, until
// ctx ends.
func (l *Loops) expire(ctx context.Context, _ *term) {
	for rest(ctx, nil, expireEvery) {
		err := l.batches(ctx, l.expireSome)
		l.note(ctx, "expired objects could not be removed; trying again", err)
		err = l.batches(ctx, l.releaseSome)
		l.note(ctx, "lists of blocks that nothing refers to could not be removed; trying again", err)
	}
}

// batches repeats a step until there is nothing more to do.
func (l *Loops) batches(ctx context.Context, step func(context.Context) (more bool, err error)) error {
	for {
		began := time.Now()
		more, err := step(ctx)
		if err != nil || !more {
			return err
		}
		if err := sleep.For(ctx, expireShare*time.Since(began)); err != nil {
			return err
		}
	}
}

func (l *Loops) expireSome(ctx context.Context) (more bool, err error) {
	var expired []names.Expired
	err = l.read(ctx, func(view *names.View) (err error) {
		expired, err = view.Expired(l.o.Now().UnixNano(), expireBatch)
		return err
	})
	if err != nil || len(expired) == 0 {
		return false, err
	}
	ops := make([]*objectv1.Operation, len(expired))
	for i, one := range expired {
		ops[i] = one.Operation
	}
	results, err := l.propose(ctx, ops...)
	if err != nil {
		return false, err
	}
	done := 0
	for _, result := range results {
		if result.GetRefused() == "" {
			done++
		}
	}
	l.o.Metrics.Expired(done)
	return done > 0 && len(expired) == expireBatch, nil
}

func (l *Loops) releaseSome(ctx context.Context) (more bool, err error) {
	var lists []*objectv1.ReleasedList
	err = l.read(ctx, func(view *names.View) (err error) {
		lists, err = view.Unreferenced(releaseBatch)
		return err
	})
	if err != nil || len(lists) == 0 {
		return false, err
	}
	_, err = l.propose(ctx, &objectv1.Operation{What: &objectv1.Operation_Release{Release: &objectv1.Release{Lists: lists}}})
	return err == nil, err
}
