// Package core is what the nouns and the parts of a server share: the replicated state and the way to change it, the
// caller of a call, the receipts of calls that may be repeated, the gRPC statuses that calls end with, and the machines
// that were refused as duplicates. It must not know the rules of any noun, nor import another part of the server.
package core

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/sleep"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Core is the state of one server and the way to change it.
type Core struct {
	// UID is the uid of this server.
	UID       string
	Store     *state.Store
	Consensus *consensus.Consensus
	// Clock is the clock of this server.
	Clock   func() time.Time
	Logger  *slog.Logger
	Tracing *telemetry.Tracing // may be nil
	// Seals sees to it that what a transaction stores is sealed by the key of its state; may be nil.
	Seals func(*state.Snapshot, *state.Batch) error
}

// ErrStopping ends calls that a stopping server does not finish.
var ErrStopping = errors.New("this server is stopping")

// Now is the time by the clock of this server.
func (c *Core) Now() time.Time { return c.Clock().UTC() }

// maxAttempts limits the retries of a proposal after conflicts. Each failed attempt means
// that another proposal succeeded.
const maxAttempts = 64

// sealPause is the pause before a transaction is built again for which this server has no key yet.
const sealPause = 50 * time.Millisecond

// Propose builds a transaction on the newest state, and builds it again if the state has
// changed meanwhile. The returned snapshot contains the changes.
//
// A refusal or a transaction without changes is not proposed, so no other server confirms
// it. It is therefore decided on a state that is surely the newest: a leader may have lost
// its leadership without knowing it yet.
func (c *Core) Propose(ctx context.Context, build func(*state.Snapshot, *state.Batch) error) (*state.Snapshot, error) {
	snap, sure := c.Store.Snapshot(), false
	var err, unsealed error
	for range maxAttempts {
		var b state.Batch
		refused := build(snap, &b)
		if refused == nil && b.Len() > 0 {
			if c.Seals != nil {
				if err = c.Seals(snap, &b); err != nil { // this server gets the key in a moment
					if sleep.For(ctx, sealPause) != nil {
						return nil, context.Cause(ctx)
					}
					unsealed, snap, sure = err, c.Store.Snapshot(), false
					continue
				}
				unsealed = nil
			}
			if err = c.agree(ctx, b.Transaction(c.Now())); err == nil {
				return c.Store.Snapshot(), nil
			}
			if !state.MovedOn(err) {
				return nil, err
			}
			snap, sure = c.Store.Snapshot(), false
			continue
		}
		if sure && refused != nil {
			return nil, refused
		}
		if sure {
			return snap, nil
		}
		if snap, err = c.Consensus.Read(ctx); err != nil {
			return nil, err
		}
		sure = true
	}
	if unsealed != nil {
		return nil, Refuse(codes.Unavailable, "%s", unsealed)
	}
	return nil, fmt.Errorf("gave up after %d attempts: %w", maxAttempts, err)
}

// agree proposes a transaction. If the call is traced, its revisions carry the trace, so
// that the parts that run them can continue it.
func (c *Core) agree(ctx context.Context, tx *statev1.Transaction) error {
	if c.Tracing == nil || !telemetry.Traced(ctx) {
		_, err := c.Consensus.Propose(ctx, tx)
		return err
	}
	parent := telemetry.Traceparent(ctx)
	for _, change := range tx.GetChanges() {
		if revision := change.GetPut().GetRevision(); revision.GetSpec() != nil && revision.GetMetadata().GetVersion() == 0 {
			revision.Spec.Trace = parent
		}
	}
	ctx, span := c.Tracing.Start(ctx, telemetry.SpanInternal, "propose")
	_, err := c.Consensus.Propose(ctx, tx)
	span.End(err)
	return err
}

// Event returns an event about an object, caused by the caller in ctx.
func (c *Core) Event(ctx context.Context, about state.Object, reason, message string) *v1.Event {
	return state.NewEvent(state.NewUID(), c.Now(), about, state.SeverityInfo, reason, message, c.Actor(ctx))
}

// Actor is the caller, or this server if there is none.
func (c *Core) Actor(ctx context.Context) string {
	if p := Caller(ctx); !p.ID.IsZero() {
		return string(p.ID.Kind()) + "/" + p.Name()
	}
	return "server/" + c.UID
}
