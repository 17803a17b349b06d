package replicas

import (
	"maps"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// memory is what an engine keeps from one tick to the next, beside the state. Its zero
// value is empty.
type memory struct {
	waiting map[string]bool // see Due.Waiting
	// watching is the subset of waiting that other workloads' changes may help, see
	// Due.Watching.
	watching map[string]bool
	later    map[string]time.Time // see Due.Later
	daemons  map[string]bool      // by uid
	// depending are the workloads that wait for others, see Due.Depending.
	depending map[string]map[string]bool
}

// begin forgets everything and makes the whole state due.
func (m *memory) begin(snap *state.Snapshot) Due {
	*m = memory{}
	for w := range snap.Workloads("", "") {
		if w.GetSpec().GetKind() == spec.KindDaemon {
			m.addDaemon(w)
		}
	}
	return everything(snap)
}

// after returns what is due after changes: the objects that changed and, if there may be
// room now, the workloads that wait for it.
func (m *memory) after(changes []state.Change) Due {
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
	m.wakeDependents(changes, &due)
	return due
}

// keep remembers what a tick has left.
func (m *memory) keep(left Due) {
	if m.waiting == nil {
		m.waiting = map[string]bool{}
	}
	if m.watching == nil {
		m.watching = map[string]bool{}
	}
	maps.Copy(m.waiting, left.Waiting)
	maps.Copy(m.watching, left.Watching)
	m.keepLater(left.Later)
	if m.depending == nil {
		m.depending = map[string]map[string]bool{}
	}
	for path, dependents := range left.Depending {
		if m.depending[path] == nil {
			m.depending[path] = map[string]bool{}
		}
		maps.Copy(m.depending[path], dependents) // others may wait for the same one
	}
}

// wakeDependents makes workloads due that wait for another one, if that has changed, or if a node has changed its state:
// replicas on an offline node do not count.
func (m *memory) wakeDependents(changes []state.Change, due *Due) {
	if len(m.depending) == 0 {
		return
	}
	for _, c := range changes {
		object := c.New
		if object == nil {
			object = c.Old
		}
		name := ""
		switch o := object.(type) {
		case *v1.Node:
			if before, _ := c.Old.(*v1.Node); before.GetStatus().GetState() != o.GetStatus().GetState() {
				for _, dependents := range m.depending {
					maps.Copy(due.Workloads, dependents)
				}
				clear(m.depending)
			}
			continue
		case *v1.Workload:
			name = o.GetMetadata().GetName()
		case *v1.Deployment:
			name = o.GetSpec().GetWorkload()
		case *v1.Replica:
			name = o.GetSpec().GetWorkload()
		}
		path := object.GetMetadata().GetNamespace() + "/" + name
		maps.Copy(due.Workloads, m.depending[path])
		delete(m.depending, path)
	}
}

// keepLater remembers when workloads are due without a change.
func (m *memory) keepLater(later map[string]time.Time) {
	if m.later == nil {
		m.later = map[string]time.Time{}
	}
	maps.Copy(m.later, later)
}

// next is when the next workload is due without a change. It is zero if none is.
func (m *memory) next() (at time.Time) {
	for _, later := range m.later {
		if at.IsZero() || later.Before(at) {
			at = later
		}
	}
	return at
}

// elapsed returns the workloads whose time has come.
func (m *memory) elapsed(until time.Time) Due {
	due := Due{Workloads: map[string]bool{}}
	for uid, at := range m.later {
		if !at.After(until) {
			due.Workloads[uid] = true
			delete(m.later, uid)
		}
	}
	return due
}
