package nodes

import (
	"context"
	"runtime"
	"time"
)

// deafCheckInterval is how often a deaf server checks whether it listens again.
const deafCheckInterval = 50 * time.Millisecond

// turns is how often the loop yields to all other goroutines. A heartbeat passes three of
// them on its way from the socket to here.
const turns = 8

// drainHeartbeats returns when heartbeats that have arrived have been handled: at once on an idle
// server, and later on a busy one. A node is not silent because this server is too busy to
// read.
func drainHeartbeats() {
	for range turns {
		runtime.Gosched()
	}
}

// stallCheckInterval is how often a server checks whether its own process was stalled, because its
// machine is suspended or overloaded. A gap of stallLimit counts as a stall.
const (
	stallCheckInterval = 250 * time.Millisecond
	stallLimit         = 3 * stallCheckInterval
)

// detectStalls detects stalls of this server.
func (l *Loop) detectStalls(ctx context.Context) {
	ticker := time.NewTicker(stallCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.extendDeadlines(time.Now())
		}
	}
}

// extendDeadlines extends the deadlines of all nodes by the time that this server was stalled.
func (l *Loop) extendDeadlines(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stalled := now.Sub(l.lastCheck)
	l.lastCheck = now
	if stalled <= stallLimit {
		return
	}
	for _, e := range l.entries {
		from := latest(l.since, e.NotBefore, e.LastSeen, e.Broken)
		if e.NotBefore = from.Add(stalled); e.NotBefore.After(now) {
			e.NotBefore = now
		}
	}
}

// deaf reports whether this server may have missed what nodes sent.
func (l *Loop) deaf(now time.Time) bool {
	if l.Deaf != nil && l.Deaf() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.lastCheck) > stallLimit
}

// suspectRelayed treats the sessions of silent nodes as broken if they are relayed by another
// server that does not answer: the silence may be that server's. The nodes become suspects,
// and have the reconnect window to find another server.
func (l *Loop) suspectRelayed(now time.Time) {
	if l.CutOff == nil {
		return
	}
	for _, uid := range l.overdue(now) {
		cut := l.CutOff(uid) // without the lock: sessions call the loop while they hold theirs
		l.mu.Lock()
		e := l.entries[uid]
		if cut && e != nil && e.Connected && !now.Before(e.deadline(l.since)) {
			l.broke(uid, e)
		}
		l.mu.Unlock()
	}
}
