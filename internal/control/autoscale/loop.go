package autoscale

import (
	"context"
	"iter"
	"sync"
	"time"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Proposer agrees on changes with the other servers.
type Proposer interface {
	Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error)
}

// Reports has the newest usage of replicas, by uid; news is closed at the next report. The loop of nodes has it.
type Reports interface {
	Usage() (nodes map[string]*v1.NodeResources, replicas map[string]*v1.ReplicaUsage, news <-chan struct{})
}

// Traffic counts the requests that routes lead to services.
type Traffic interface {
	// Requests is how many requests a second a service got within the last so long. known is false if they were not
	// counted for the whole time: an unknown number is not zero.
	Requests(serviceUID string, within time.Duration) (perSecond float64, known bool)
}

const (
	// Period is the time between two ticks.
	Period = 5 * time.Second
	// rateWithin is the time over which requests are counted.
	rateWithin = 10 * time.Second
	// maxWakes is for how many services wakes wait at most.
	maxWakes = 10000
)

// Options are the parts that a Loop works with.
type Options struct {
	Store    *state.Store
	Proposer Proposer
	Reports  Reports
	// Traffic is nil if nothing counts requests. Targets by requests are unknown then, and nothing is scaled to zero.
	Traffic Traffic
	// Metrics counts the decisions. It may be nil.
	Metrics *telemetry.Server
}

// Loop ticks while there are autoscaled workloads and this server leads, and at once when a request waits.
type Loop struct {
	Options

	mu      sync.Mutex
	leading bool
	woken   map[string]bool
	memory  *Memory
	sampler *sampler
	wake    chan struct{} // has a token while woken has a service
}

// New returns a loop that does not run yet.
func New(o Options) *Loop {
	return &Loop{Options: o, woken: map[string]bool{}, memory: NewMemory(), sampler: newSampler(), wake: make(chan struct{}, 1)}
}

// Wake scales a service up that sleeps, because a request waits for it. It does not wait. A server that does not lead
// ignores it.
func (l *Loop) Wake(serviceUID string) {
	if !asleep(l.Store.Snapshot(), serviceUID) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.leading || len(l.woken) >= maxWakes {
		return
	}
	l.woken[serviceUID] = true
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// asleep reports whether a workload of a service sleeps.
func asleep(snap *state.Snapshot, serviceUID string) bool {
	s := snap.Service(serviceUID)
	if s == nil {
		return false
	}
	for w := range services.Workloads(snap, s) {
		if spec.Asleep(w) {
			return true
		}
	}
	return false
}

// Values are the newest measurements of a workload, nil if this server makes none.
func (l *Loop) Values(workloadUID string) []*v1.ScaleValue {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.memory.Values(workloadUID)
}

// Run ticks until ctx ends.
func (l *Loop) Run(ctx context.Context) error {
	l.begin(true)
	defer l.begin(false)
	feed := l.Store.Follow()
	for {
		snap := feed.Newest().Snapshot
		if !exists(Autoscaled(snap)) {
			if err := awaitAutoscaled(ctx, feed); err != nil {
				return err
			}
			continue
		}
		if err := l.tick(ctx, snap); err != nil {
			return err
		}
		timer := time.NewTimer(Period)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-l.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// begin begins or ends to lead, with nothing remembered of an earlier time.
func (l *Loop) begin(leading bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading, l.memory, l.sampler = leading, NewMemory(), newSampler()
	clear(l.woken)
}

// awaitAutoscaled returns when a change concerns an autoscaled workload.
func awaitAutoscaled(ctx context.Context, feed *state.Follower) error {
	for {
		news, err := feed.Next(ctx)
		if err != nil {
			return err
		}
		if news.Resync {
			return nil
		}
		for _, c := range news.Changes {
			if w, ok := c.New.(*v1.Workload); ok && w.GetSpec().GetAutoscale() != nil {
				return nil
			}
		}
	}
}

func exists(all iter.Seq[*v1.Workload]) bool {
	for range all {
		return true
	}
	return false
}

// tick decides once. What could not be proposed, because something has changed meanwhile, is decided again by the next
// tick; a wake is not lost by that.
func (l *Loop) tick(ctx context.Context, snap *state.Snapshot) error {
	now := time.Now().UTC()
	_, reported, _ := l.Reports.Usage()
	l.mu.Lock()
	woken := l.woken
	l.woken = map[string]bool{}
	l.sampler.hear(now, reported)
	in := Input{Now: now, Woken: woken, Measured: func(w *v1.Workload, s spec.Scaling) Measured { return l.measure(now, snap, w, s) }}
	batch := Tick(in, snap, l.memory, state.NewUID)
	l.mu.Unlock()
	if batch.Len() == 0 {
		return nil
	}
	tx := batch.Transaction(now)
	result, err := l.Proposer.Propose(ctx, tx)
	switch {
	case state.MovedOn(err) || len(result.LeftOut) > 0:
		for uid := range woken {
			l.Wake(uid)
		}
		return nil
	case err != nil:
		return err
	}
	l.count(tx)
	return nil
}

// count counts the decisions of a transaction.
func (l *Loop) count(tx *statev1.Transaction) {
	for _, change := range tx.GetChanges() {
		if e := change.GetPut().GetEvent(); e != nil {
			l.Metrics.Autoscaled(e.GetSpec().GetReason())
		}
	}
}

// measure collects what is known of a workload. The caller holds the lock.
func (l *Loop) measure(now time.Time, snap *state.Snapshot, w *v1.Workload, s spec.Scaling) Measured {
	m := Measured{Replicas: map[string]Usage{}}
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if u, known := l.sampler.usage(now, r.GetMetadata().GetUid()); known {
			m.Replicas[r.GetMetadata().GetUid()] = u
		}
	}
	if l.Traffic == nil || s.Requests == 0 && s.Least > 0 {
		return m
	}
	all := 0
	m.Quiet = s.Least == 0
	for service := range snap.Services(w.GetMetadata().GetNamespace(), "") {
		if !services.Chooses(service, w) {
			continue
		}
		if len(routes.LeadsTo(snap, service)) == 0 {
			m.Quiet = false // nobody counts what callers inside the cluster ask of it
			continue
		}
		all++
		uid := service.GetMetadata().GetUid()
		// A sum with a part missing would scale in.
		rate, known := l.Traffic.Requests(uid, rateWithin)
		m.Requests, m.RequestsKnown = m.Requests+rate, known && (all == 1 || m.RequestsKnown)
		if m.Quiet {
			rate, known := l.Traffic.Requests(uid, s.Idle)
			m.Quiet = known && rate == 0
		}
	}
	m.Quiet = m.Quiet && all > 0
	return m
}
