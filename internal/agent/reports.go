package agent

import (
	"sync"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// reports collects what has changed since the last message to a server. It keeps only the
// newest status of each replica, so it never holds more than there are replicas, however
// long a server is away.
type reports struct {
	mu      sync.Mutex
	pending []*v1.ReplicaReport
	index   map[string]int // into pending, by uid
	events  []*v1.EventReport
	wake    chan struct{} // has a token while there is something to send
}

func newReports() *reports {
	return &reports{index: map[string]int{}, wake: make(chan struct{}, 1)}
}

func (r *reports) add(report *v1.ReplicaReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, found := r.index[report.GetUid()]; found {
		r.pending[i] = report
	} else {
		r.index[report.GetUid()] = len(r.pending)
		r.pending = append(r.pending, report)
	}
	r.signal()
}

func (r *reports) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// maxEvents bounds the queue while no server is connected.
const maxEvents = 64

// addEvent queues events. If there are too many, the oldest are dropped.
func (r *reports) addEvent(events ...*v1.EventReport) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, events...)
	r.events = r.events[max(0, len(r.events)-maxEvents):]
	r.signal()
}

// takeEvents returns the queued events.
func (r *reports) takeEvents() []*v1.EventReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.events
	r.events = nil
	return taken
}

// take returns all queued reports.
func (r *reports) take() []*v1.ReplicaReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := r.pending
	r.pending = nil
	clear(r.index)
	return taken
}
