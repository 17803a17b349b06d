package replicas

import (
	"maps"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Memory is what the loop knows beside the state from one tick to the next. It
// is apart from the loop, which adds clock, log and feed to it, so that others
// can drive Tick as the loop does. Its zero value has seen nothing.
type Memory struct {
	waiting map[string]bool // see Due.Waiting
	// watching are those of them that others may help, see Due.Watching.
	watching map[string]bool
	later    map[string]time.Time // see Due.Later
	daemons  map[string]bool      // by uid
}

// Begin forgets what was before, and says what is due in a state that was not
// followed until now: everything.
func (m *Memory) Begin(snap *state.Snapshot) Due {
	*m = Memory{}
	for w := range snap.Workloads("", "") {
		if w.GetSpec().GetKind() == spec.KindDaemon {
			m.addDaemon(w)
		}
	}
	return everything(snap)
}

// After says what is due after changes: what they concern, and where there may
// be room now, also the workloads that wait for it.
func (m *Memory) After(changes []state.Change) Due {
	due := dueAfter(changes)
	if due.Placement {
		maps.Copy(due.Workloads, m.waiting)
		m.waiting, m.watching = nil, nil
	}
	if due.Moved {
		maps.Copy(due.Workloads, m.watching)
		m.watching = nil
	}
	m.followDaemons(changes, &due)
	return due
}

// Keep remembers what a tick has left.
func (m *Memory) Keep(left Due) {
	if m.waiting == nil {
		m.waiting = map[string]bool{}
	}
	if m.watching == nil {
		m.watching = map[string]bool{}
	}
	maps.Copy(m.waiting, left.Waiting)
	maps.Copy(m.watching, left.Watching)
	m.keepLater(left.Later)
}

// keepLater remembers when to look at workloads without a change.
func (m *Memory) keepLater(later map[string]time.Time) {
	if m.later == nil {
		m.later = map[string]time.Time{}
	}
	maps.Copy(m.later, later)
}

// Next is when the next workload is due without a change, zero if none is.
func (m *Memory) Next() (at time.Time) {
	for _, later := range m.later {
		if at.IsZero() || later.Before(at) {
			at = later
		}
	}
	return at
}

// Elapsed says which workloads are due because a time has come.
func (m *Memory) Elapsed(until time.Time) Due {
	due := Due{Workloads: map[string]bool{}}
	for uid, at := range m.later {
		if !at.After(until) {
			due.Workloads[uid] = true
			delete(m.later, uid)
		}
	}
	return due
}
