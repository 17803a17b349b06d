package object

import (
	"context"
	"fmt"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// lookFor is how long the store looks whether a proposal with an unknown outcome was applied.
const lookFor = 10 * time.Second

func (s *Store) view(ctx context.Context) (*names.View, error) {
	view, err := s.names.View(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the names of objects: %w", err)
	}
	return view, nil
}

// proposeOne has one operation applied. The result may be a refusal.
func (s *Store) proposeOne(ctx context.Context, op *objectv1.Operation) (*objectv1.Result, error) {
	results, err := s.propose(ctx, op)
	if err != nil {
		return nil, err
	}
	return results[0], nil
}

func (s *Store) propose(ctx context.Context, ops ...*objectv1.Operation) ([]*objectv1.Result, error) {
	now := s.now().UnixNano()
	for _, op := range ops {
		op.Time = now
	}
	results, err := s.names.Propose(ctx, &objectv1.Entry{Operations: ops})
	if err != nil {
		return nil, fmt.Errorf("writing the names of objects: %w", err)
	}
	if len(results.GetResults()) != len(ops) {
		return nil, fmt.Errorf("the store's servers answered %d of %d operations", len(results.GetResults()), len(ops))
	}
	return results.GetResults(), nil
}

// proposeOnce has one operation applied. After an error nobody knows whether it was. Then applied looks for what the
// operation makes, in names that are newer than the proposal; it returns nil if it is not there. The operation is not
// proposed again: between two applications of it, another client may have put something, which would be undone.
func (s *Store) proposeOnce(ctx context.Context, op *objectv1.Operation, applied func(*names.View) (*objectv1.Result, error)) (*objectv1.Result, error) {
	result, err := s.proposeOne(ctx, op)
	if err == nil {
		return result, nil
	}
	looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookFor)
	defer cancel()
	view, lookErr := s.view(looking)
	if lookErr != nil {
		return nil, err
	}
	defer view.Close()
	if found, lookErr := applied(view); lookErr == nil && found != nil {
		return found, nil
	}
	return nil, err
}

// proposeAgain has an operation applied that does nothing the second time. After an error it is proposed once more.
func (s *Store) proposeAgain(ctx context.Context, op *objectv1.Operation) (*objectv1.Result, error) {
	result, err := s.proposeOne(ctx, op)
	if err != nil && ctx.Err() == nil {
		return s.proposeOne(ctx, op)
	}
	return result, err
}
