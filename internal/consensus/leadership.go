package consensus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// leadership is what this server knows about the leader.
type leadership struct {
	mu sync.Mutex
	// term is not nil while this server leads and its state includes everything that earlier leaders did.
	term *term
	// over is set when there will be no more terms.
	over bool
	// alone is since when no leader is known; zero while one is.
	alone time.Time
	// change is closed at the next change of anything here, or of the leader.
	change chan struct{}
}

// term is one term of leading, which ends with its context.
type term struct {
	// number is raft's.
	number uint64
	ctx    context.Context
	end    context.CancelCauseFunc
}

func (l *leadership) init() { l.change = make(chan struct{}) }

// now returns the current term, if there is one, and a channel that is closed when that may have changed.
func (l *leadership) now() (*term, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term, l.change
}

func (l *leadership) begin(number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	ctx, end := context.WithCancelCause(context.Background())
	l.term = &term{number: number, ctx: ctx, end: end}
	l.broadcast()
}

func (l *leadership) end(reason error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term != nil {
		l.term.end(reason)
		l.term = nil
	}
	l.broadcast()
}

// finish ends leadership for good.
func (l *leadership) finish(reason error) {
	l.mu.Lock()
	l.over = true
	l.mu.Unlock()
	l.end(reason)
}

// changed wakes the waiting goroutines after a change of the leader.
func (l *leadership) changed(led bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case led:
		l.alone = time.Time{}
	case l.alone.IsZero():
		l.alone = time.Now()
	}
	l.broadcast()
}

func (l *leadership) broadcast() {
	close(l.change)
	l.change = make(chan struct{})
}

// watch follows raft's leadership notifications until this server stops.
func (g *Group) watch(notify <-chan bool) {
	observed := make(chan raft.Observation, 16)
	observer := raft.NewObserver(observed, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	g.raft.RegisterObserver(observer)
	defer g.raft.DeregisterObserver(observer)
	changed := func() {
		_, led := g.Leader()
		g.leadership.changed(led)
	}
	changed() // for what happened before the observer existed
	for {
		select {
		case leads := <-notify:
			g.take(leads)
		case <-observed:
			changed()
		case err := <-g.fsm.failed:
			g.logger.Error("this server stops", "error", err)
			g.shutdown(err)
		case <-g.done:
			return
		}
	}
}

// take makes this server leader, or ends that.
func (g *Group) take(leads bool) {
	if !leads {
		g.leadership.end(ErrNotLeader)
		g.logger.Info("this server leads no more")
		return
	}
	number := g.raft.CurrentTerm()
	if err := g.barrier(number); err != nil {
		g.logger.Info("leadership was lost before it began", "error", err)
		return
	}
	if g.raft.CurrentTerm() != number {
		return // it was lost meanwhile; raft notifies of that next
	}
	if len(g.fsm.failed) > 0 {
		return // the state is not that of the log, and this server is about to stop
	}
	g.leadership.begin(number)
	g.logger.Info("this server leads", "term", number, "index", g.machine.Applied())
}

const (
	barrierPause = 50 * time.Millisecond
	// barrierPatience is longer than any leadership transfer of raft.
	barrierPatience = 30 * time.Second
)

// barrier returns when everything before this server's term is applied. Raft may still be trying to transfer leadership
// to another server, as requested in an earlier term. This server leads nevertheless, once raft is done with that. If
// the other server hangs, raft may never be, and does nothing else: then this server stops.
func (g *Group) barrier(number uint64) error {
	for began := time.Now(); ; {
		applied := make(chan error, 1)
		if !g.start(func() { applied <- g.raft.Barrier(0).Error() }) {
			return ErrShutdown
		}
		err := <-applied // raft answers as soon as leadership is lost
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) || g.raft.CurrentTerm() != number || g.raft.State() != raft.Leader {
			return err
		}
		if time.Since(began) > barrierPatience {
			err = fmt.Errorf("this server was elected but cannot lead: %w; start it again", err)
			g.shutdown(err)
			return err
		}
		select {
		case <-time.After(barrierPause):
		case <-g.done:
			return ErrShutdown
		}
	}
}

// IsLeader reports whether this server leads and has the newest state.
func (g *Group) IsLeader() bool {
	term, _ := g.leadership.now()
	return term != nil
}

// Leader returns the leader, as far as this server knows.
func (g *Group) Leader() (Server, bool) {
	address, id := g.raft.LeaderWithID()
	return Server{ID: string(id), Address: plainAddress(address), Voter: id != ""}, id != ""
}

// Leaderless is for how long there has been no leader, as far as this server knows; 0 while there is one.
func (g *Group) Leaderless() time.Duration {
	_, led := g.Leader()
	g.leadership.mu.Lock()
	defer g.leadership.mu.Unlock()
	if led || g.leadership.alone.IsZero() {
		return 0
	}
	return time.Since(g.leadership.alone)
}

// WaitLeader waits until there is a leader; if it is this server, until it has the newest state.
func (g *Group) WaitLeader(ctx context.Context) error {
	for {
		term, change := g.leadership.now()
		if leader, known := g.Leader(); known && (leader.ID != g.id || term != nil) {
			return nil
		}
		if err := g.await(ctx, change); err != nil {
			return fmt.Errorf("wait for a leader: %w", err)
		}
	}
}

// Lead runs f while this server leads: f begins when the state includes everything earlier leaders did, its context
// ends with leadership, and it runs again when leadership comes back. If f fails while this server leads, Lead returns
// that error; if it returns nil, it has done its work for this term. Lead returns when ctx ends, after f.
func (g *Group) Lead(ctx context.Context, f func(context.Context) error) error {
	for {
		term, change := g.leadership.now()
		if term != nil {
			if err := term.run(ctx, f); err != nil {
				return err
			}
			change = term.ctx.Done()
		}
		if err := g.await(ctx, change); err != nil {
			return err
		}
	}
}

// run runs f until it is done or the term has ended. After that its error does not count.
func (t *term) run(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })()
	if err := f(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// await waits for a change, unless waiting is pointless.
func (g *Group) await(ctx context.Context, change <-chan struct{}) error {
	select {
	case <-g.done:
		return g.stopped()
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
	}
	select {
	case <-change:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.done:
		return g.stopped()
	}
}
