package autoscale

import (
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// warmUp is how long a replica must have served before its usage counts: a program that starts uses more CPU than later.
const warmUp = 10 * time.Second

// Memory is what ticks remember: what was recommended for each service within its windows. It is not replicated, so a
// new leader begins with the number that each service has.
type Memory struct {
	records map[string]*record // by workload uid
	kept    map[string]bool
}

// NewMemory returns a memory of nothing.
func NewMemory() *Memory { return &Memory{records: map[string]*record{}} }

// Values returns the newest measurements of a workload. It is nil if there are none.
func (m *Memory) Values(workloadUID string) []*v1.ScaleValue {
	if r := m.records[workloadUID]; r != nil {
		return r.values
	}
	return nil
}

func (m *Memory) begin() { m.kept = map[string]bool{} }

// end forgets the workloads that the tick did not see.
func (m *Memory) end() {
	for uid := range m.records {
		if !m.kept[uid] {
			delete(m.records, uid)
		}
	}
}

func (m *Memory) keep(w *v1.Workload) { m.kept[w.GetMetadata().GetUid()] = true }

// of returns the record of a workload. A new record begins with the number that the workload has, so that nothing
// changes before a window has passed.
func (m *Memory) of(w *v1.Workload, now time.Time) *record {
	m.keep(w)
	uid := w.GetMetadata().GetUid()
	if m.records[uid] == nil {
		m.records[uid] = &record{servingSince: map[string]time.Time{}, fresh: true}
		m.records[uid].hold(now, int(spec.Replicas(w)))
	}
	return m.records[uid]
}

// record is what is remembered of one workload.
type record struct {
	// highest and lowest are the recommendations of the windows.
	highest, lowest window
	// servingSince is when each replica was first seen to serve; zero if that was before the record.
	servingSince map[string]time.Time
	fresh        bool
	missingSince time.Time
	values       []*v1.ScaleValue
}

// hold recommends the number that the workload has.
func (r *record) hold(now time.Time, n int) {
	r.highest.add(now, n, func(a, b int) bool { return a > b })
	r.lowest.add(now, n, func(a, b int) bool { return a < b })
}

// stabilise adds a recommendation, and returns the number that the windows allow.
func (r *record) stabilise(now time.Time, n, wanted int, s spec.Scaling) int {
	r.hold(now, wanted)
	r.highest.forget(now.Add(-s.DownWindow))
	r.lowest.forget(now.Add(-s.UpWindow))
	switch {
	case wanted > n && s.UpWindow == 0:
		return wanted
	case wanted > n:
		return max(n, r.lowest.extreme())
	case wanted < n && s.DownWindow == 0:
		return wanted
	case wanted < n:
		return min(n, r.highest.extreme())
	}
	return n
}

// warm reports whether a serving replica has served for long enough, by its uid. One that began in the future was seen before
// the clock was set back.
func (r *record) warm(now time.Time, uid string) bool {
	since, known := r.servingSince[uid]
	if !known || since.After(now) {
		if !r.fresh {
			since = now
		}
		r.servingSince[uid] = since
	}
	return now.Sub(since) >= warmUp
}

// forgetReplicas drops the replicas that no longer serve.
func (r *record) forgetReplicas(serving map[string]bool) {
	for uid := range r.servingSince {
		if !serving[uid] {
			delete(r.servingSince, uid)
		}
	}
}

// window has the recommendations within some time, without those that a later one outdoes: the first is the extreme.
type window struct{ entries []recommendation }

type recommendation struct {
	at time.Time
	n  int
}

func (w *window) add(at time.Time, n int, outdoes func(a, b int) bool) {
	for len(w.entries) > 0 && !outdoes(w.entries[len(w.entries)-1].n, n) {
		w.entries = w.entries[:len(w.entries)-1]
	}
	w.entries = append(w.entries, recommendation{at, n})
}

// forget drops recommendations from before a time. The newest stays.
func (w *window) forget(before time.Time) {
	n := 0
	for n < len(w.entries)-1 && w.entries[n].at.Before(before) {
		n++
	}
	w.entries = slices.Delete(w.entries, 0, n)
}

func (w *window) extreme() int { return w.entries[0].n }
