package nodes

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// Loop remembers what sessions say and ticks when it matters.
type Loop struct {
	store    *state.Store
	proposer Proposer
	windows  Windows
	wake     chan struct{}

	mu   sync.Mutex
	seen map[string]Observation
	news chan struct{} // closed at the next word about usage; nil while nobody waits for it
}

// DefaultWindows bear a restart of an agent or a busy machine.
var DefaultWindows = Windows{Silence: 10 * time.Second, Reconnect: 15 * time.Second}

// New returns a loop that has heard of nobody yet.
func New(store *state.Store, proposer Proposer, windows Windows) *Loop {
	return &Loop{
		store: store, proposer: proposer, windows: windows,
		wake: make(chan struct{}, 1), seen: map[string]Observation{},
	}
}

// Connected is called when a node's session begins.
func (l *Loop) Connected(uid string, status *v1.NodeStatus) {
	l.update(uid, func(o *Observation) {
		o.Connected = true
		o.Usage = status.GetUsage()
		o.Status = lasting(status)
	})
	l.signal()
}

// Heartbeat is called for every heartbeat of a session.
func (l *Loop) Heartbeat(uid string, beat *v1.Heartbeat) {
	silent := false
	snap := l.store.Snapshot()
	l.update(uid, func(o *Observation) {
		silent = !o.Connected || time.Since(o.LastSeen) >= l.windows.Silence
		o.Connected = true
		o.Usage = beat.GetUsage()
		o.Replicas = measured(snap, uid, o.Replicas, beat.GetReplicas())
		l.announce()
		if beat.GetStatus() != nil {
			o.Status = lasting(beat.GetStatus())
		}
	})
	if silent || beat.GetStatus() != nil {
		l.signal()
	}
}

// Disconnected is called when a node has no session any more.
func (l *Loop) Disconnected(uid string) {
	l.update(uid, func(o *Observation) { o.Connected = false })
	l.signal()
}

// Observe adds to a node what is known only here.
func (l *Loop) Observe(n *v1.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o, ok := l.seen[n.GetMetadata().GetUid()]; ok {
		n.Status.Usage = o.Usage
		n.Status.LastSeen = timestamppb.New(o.LastSeen)
	}
}

// lasting is the part of a status that is worth replicating.
func lasting(status *v1.NodeStatus) *v1.NodeStatus {
	kept := proto.CloneOf(status)
	if kept == nil {
		kept = &v1.NodeStatus{}
	}
	kept.Usage, kept.Requested, kept.LastSeen = nil, nil, nil
	return kept
}

func (l *Loop) update(uid string, change func(*Observation)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.seen[uid]
	change(&o)
	o.LastSeen = time.Now() // with its monotonic part: a wall clock may jump
	l.seen[uid] = o
}

func (l *Loop) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	since := time.Now()
	l.signal()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.wake:
		case <-timer.C:
		}
		next, err := l.settle(ctx, since)
		if err != nil {
			return err
		}
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

func (l *Loop) settle(ctx context.Context, since time.Time) (time.Time, error) {
	for {
		now := time.Now()
		snap := l.store.Snapshot()
		l.forget(now, snap)
		l.mu.Lock()
		seen := maps.Clone(l.seen)
		l.mu.Unlock()
		batch, next := Tick(now, since, snap, seen, l.windows, newUID)
		if batch.Len() == 0 {
			return next, nil
		}
		_, err := l.proposer.Propose(ctx, batch.Transaction(now))
		if err == nil {
			return next, nil
		}
		if !state.MovedOn(err) {
			return next, err
		}
	}
}

func newUID() string { return uuid.Must(uuid.NewV7()).String() }
