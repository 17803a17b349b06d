package sim

import (
	"errors"
	"time"

	"github.com/cloudless/cloudless/internal/control/cron"
	"github.com/cloudless/cloudless/internal/state"
)

// cronLoop is cron.Loop without its goroutine: it ticks when a time has come, and when a
// cron or one of its jobs has changed.
type cronLoop struct {
	*loops
	feed *state.Subscription
	// busy is set while a tick is planned or its proposal is in flight.
	busy bool
	// timer is the number of the valid timer.
	timer int
}

// wake examines what has changed.
func (l *cronLoop) wake() {
	if !l.busy && !l.dead && l.concerned() {
		l.plan(l.t.w.loopDelay())
	}
}

// concerned reports whether something has changed that concerns the loop.
func (l *cronLoop) concerned() bool {
	changes, err := l.feed.Next(ended)
	if errors.Is(err, state.ErrLagged) {
		_, l.feed = l.t.server.store.Subscribe()
		return true
	}
	return cron.Affected(changes)
}

func (l *cronLoop) plan(delay time.Duration) {
	l.busy = true
	l.t.w.after(delay, l.tick)
}

func (l *cronLoop) tick() {
	l.busy = false
	if l.dead || l.t.over {
		return
	}
	w, s := l.t.w, l.t.server
	snap, now := s.store.Snapshot(), w.wall(s)
	batch, next := cron.Tick(now, snap, w.uidsOf(s))
	if batch.Len() == 0 {
		l.arm(now, next)
		l.wake()
		return
	}
	if w.flaw == Repeating {
		undecided(batch.Transaction(w.clock()))
	}
	l.busy = true
	l.t.propose("cron", batch, snap, func(err error) {
		if l.settled(err) {
			l.plan(w.loopDelay())
		}
	})
}

// arm plans the next tick without news.
func (l *cronLoop) arm(now, next time.Time) {
	l.timer++
	if next.IsZero() {
		return
	}
	timer := l.timer
	l.t.w.after(max(time.Millisecond, min(cron.MaxSleep, next.Sub(now))), func() {
		if timer == l.timer && !l.busy && !l.dead {
			l.plan(l.t.w.loopDelay())
		}
	})
}
