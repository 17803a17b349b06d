package names

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/server/core"
)

// withLeader calls do with the leader, and again as long as do says that the server does not lead: then nothing has
// happened. An election costs callers a moment, not an error.
func (g *Group) withLeader(ctx context.Context, do func(leader string) error) error {
	var patience <-chan time.Time // begins when it is needed
	for {
		changed := g.group.Changed()
		err := error(&consensus.NotLeaderError{})
		leader, known := g.group.Leader()
		if known {
			err = do(leader.ID)
		}
		if !errors.Is(err, consensus.ErrNotLeader) {
			return err
		}
		if patience == nil {
			patience = time.After(leaderPatience)
		}
		var pause <-chan time.Time
		if known {
			pause = time.After(leaderPause)
		}
		select {
		case <-changed:
		case <-pause:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-g.group.Done():
			return consensus.ErrShutdown
		case <-patience:
			return fmt.Errorf("no server leads the group that keeps the names of objects: most servers must run and reach each other: %w", err)
		}
	}
}

// forward proposes at another server, which should lead.
func (g *Group) forward(ctx context.Context, leader string, entry *objectv1.Entry) (*objectv1.Results, error) {
	conn, err := g.conn(ctx, leader)
	if err != nil {
		return nil, errors.Join(consensus.ErrNotLeader, err) // it was not even sent
	}
	during, cancel := g.untilSucceeded(ctx, leader)
	defer cancel()
	answer, err := v1.NewNamesServiceClient(conn).ProposeNames(during, &v1.ProposeNamesRequest{Entry: entry})
	return answer.GetResults(), outcomeOf(err)
}

// outcomeOf distinguishes what was certainly not applied from what may have been.
func outcomeOf(err error) error {
	switch {
	case err == nil:
		return nil
	case core.HasReason(err, core.ReasonNotLeader):
		return errors.Join(consensus.ErrNotLeader, err)
	}
	switch status.Code(err) {
	case codes.ResourceExhausted:
		return fmt.Errorf("%w (%w)", consensus.ErrFull, err)
	case codes.InvalidArgument, codes.Unimplemented, codes.PermissionDenied, codes.Unauthenticated:
		return err
	}
	return fmt.Errorf("%w (%w)", consensus.ErrUncertain, err)
}

// askIndex asks the leader for the index that this server must have reached to answer reads.
func (g *Group) askIndex(ctx context.Context) (index uint64, err error) {
	err = g.withLeader(ctx, func(leader string) (err error) {
		if leader == g.id {
			index, err = g.group.Confirm(ctx)
			return err
		}
		index, err = g.indexOf(ctx, leader)
		if err != nil && ctx.Err() == nil {
			return errors.Join(consensus.ErrNotLeader, err) // a question can be repeated
		}
		return err
	})
	return index, err
}

// indexPatience bounds one question to the leader, which may hang.
const indexPatience = 2 * time.Second

func (g *Group) indexOf(ctx context.Context, leader string) (uint64, error) {
	conn, err := g.conn(ctx, leader)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, indexPatience)
	defer cancel()
	answer, err := v1.NewNamesServiceClient(conn).GetNamesIndex(ctx, &v1.GetNamesIndexRequest{})
	return answer.GetIndex(), err
}

// farewell is how long a former leader may take to answer. A leader that hangs never does.
const farewell = time.Second

var errSucceeded = errors.New("another server leads now")

// untilSucceeded returns a context that ends when another server than this leader has led for a moment.
func (g *Group) untilSucceeded(ctx context.Context, leader string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() { // ends with the context
		for {
			changed := g.group.Changed()
			if now, known := g.group.Leader(); known && now.ID != leader {
				break
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
		select {
		case <-time.After(farewell):
			cancel(errSucceeded)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
