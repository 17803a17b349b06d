package ingress

import (
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/trafficstat"
)

// meterKey is what requests are counted by.
type meterKey struct{ route, service, revision string }

// meter counts requests of one route to the replicas of one revision, or those that the ingress has answered itself.
type meter struct {
	key                                    meterKey
	requests, errors, received, sent, open atomic.Int64
	latencies                              trafficstat.Recorder
	reported                               int64 // how many were open in the last report
}

// answered counts a request whose answer has begun.
func (m *meter) answered(latency time.Duration, failed bool) {
	m.requests.Add(1)
	if failed {
		m.errors.Add(1)
	}
	m.latencies.Observe(latency)
}

type traffic struct {
	mu     sync.Mutex
	meters map[meterKey]*meter
}

func (t *traffic) meter(key meterKey) *meter {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.meters[key]
	if m == nil {
		m = &meter{key: key}
		t.meters[key] = m
	}
	return m
}

// take returns what was counted since the last call.
func (t *traffic) take() (all []*v1.TrafficSample) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, m := range t.meters {
		s := &v1.TrafficSample{
			RouteUid: key.route, ServiceUid: key.service, RevisionUid: key.revision,
			Requests: m.requests.Swap(0), Errors: m.errors.Swap(0), Received: m.received.Swap(0), Sent: m.sent.Swap(0), Open: m.open.Load(),
		}
		if s.GetRequests() > 0 {
			s.Latencies = m.latencies.Take()
		}
		if s.GetRequests()+s.GetErrors()+s.GetReceived()+s.GetSent() > 0 || s.GetOpen() != m.reported {
			all = append(all, s)
		}
		m.reported = s.GetOpen()
	}
	return all
}

// forget drops the meters of routes that are gone.
func (t *traffic) forget(routes map[string]*v1.IngressRoute) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, m := range t.meters {
		if routes[key.route] == nil && m.open.Load() == 0 {
			delete(t.meters, key)
		}
	}
}

// waking counts the requests that wait for services which are scaled to zero.
type waking struct {
	mu      sync.Mutex
	waiting map[string]int
}

// wait begins to wait for a service.
func (e *Engine) wait(uid string) (end func()) {
	e.wakes.mu.Lock()
	e.wakes.waiting[uid]++
	first := e.wakes.waiting[uid] == 1
	e.wakes.mu.Unlock()
	if first {
		e.hurry()
	}
	return func() {
		e.wakes.mu.Lock()
		defer e.wakes.mu.Unlock()
		if e.wakes.waiting[uid]--; e.wakes.waiting[uid] <= 0 {
			delete(e.wakes.waiting, uid)
		}
	}
}

func (w *waking) uids() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for uid := range w.waiting {
		all = append(all, uid)
	}
	return all
}
