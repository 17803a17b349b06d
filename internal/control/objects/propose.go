package objects

import (
	"context"
	"fmt"
	"slices"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

const (
	// locateBatch is how many chunks one operation moves: it should delay no client for long.
	locateBatch = 256
	// proposeTimeout ends a proposal that nobody agrees to. It is tried again.
	proposeTimeout = time.Minute
)

// read calls a function with the names as they are now.
func (l *Loops) read(ctx context.Context, f func(*names.View) error) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	view, err := l.o.Names.View(ctx)
	if err != nil {
		return fmt.Errorf("reading the names of objects: %w", err)
	}
	defer view.Close()
	return f(view)
}

// propose has operations applied. Their results may be refusals.
func (l *Loops) propose(ctx context.Context, ops ...*objectv1.Operation) ([]*objectv1.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	now := l.o.Now().UnixNano()
	for _, op := range ops {
		op.Time = now
	}
	results, err := l.o.Names.Propose(ctx, &objectv1.Entry{Operations: ops})
	if err != nil {
		return nil, fmt.Errorf("writing the names of objects: %w", err)
	}
	if len(results.GetResults()) != len(ops) {
		return nil, fmt.Errorf("the names of objects answered %d of %d operations", len(results.GetResults()), len(ops))
	}
	return results.GetResults(), nil
}

// locate has places of chunks changed.
func (l *Loops) locate(ctx context.Context, changes []*objectv1.Located) error {
	for batch := range slices.Chunk(changes, locateBatch) {
		op := &objectv1.Operation{What: &objectv1.Operation_Locate{Locate: &objectv1.Locate{Chunks: batch}}}
		if _, err := l.propose(ctx, op); err != nil {
			return err
		}
	}
	return nil
}
