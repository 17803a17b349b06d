package nodes

import (
	"context"
	"runtime"
	"time"
)

// deafLook is how often a server that is not listening looks whether it does again.
const deafLook = 50 * time.Millisecond

// turns is how often the loop lets all others go first. A heartbeat changes
// hands three times on its way from the socket to here.
const turns = 8

// hearOut returns when heartbeats that have arrived have been heard. That is at
// once on a server that has time, and takes as long as it must on one that has
// not: a node is not silent because nobody here came to listen to it.
func hearOut() {
	for range turns {
		runtime.Gosched()
	}
}

// pulse is how often a server looks whether it stands still now and then, because
// its machine is asleep or gives its time to others; stillness is what it calls so.
const (
	pulse     = 250 * time.Millisecond
	stillness = 3 * pulse
)

// feelPulse notices when this server has stood still.
func (l *Loop) feelPulse(ctx context.Context) {
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			l.beat(time.Now())
		}
	}
}

// beat gives all nodes as much more time as this server has stood still since the
// last one: it was not they who were silent.
func (l *Loop) beat(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	still := now.Sub(l.lastBeat)
	l.lastBeat = now
	if still <= stillness {
		return
	}
	for _, e := range l.entries {
		from := latest(l.since, e.NotBefore, e.LastSeen, e.Broken)
		if e.NotBefore = from.Add(still); e.NotBefore.After(now) {
			e.NotBefore = now
		}
	}
}

// deaf reports whether what nodes have said may not have been heard.
func (l *Loop) deaf(now time.Time) bool {
	if l.Deaf != nil && l.Deaf() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Sub(l.lastBeat) > stillness
}

// excuse takes the sessions for broken of those silent nodes whose words another
// server passes on that does not answer: it may be that one's silence. They are
// suspected, and have the reconnect window to find another server.
func (l *Loop) excuse(now time.Time) {
	if l.CutOff == nil {
		return
	}
	for _, uid := range l.overdue(now) {
		cut := l.CutOff(uid) // without the lock: sessions call the loop with theirs
		l.mu.Lock()
		e := l.entries[uid]
		if cut && e != nil && e.Connected && !now.Before(e.deadline(l.since)) {
			l.broke(uid, e)
		}
		l.mu.Unlock()
	}
}
