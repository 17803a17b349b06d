package autoscale

import (
	"math"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

const (
	// averageOver is the time over which CPU usage is averaged, and averageLeast the shortest one that gives a rate.
	averageOver, averageLeast = 4 * time.Second, 500 * time.Millisecond
	// staleAfter is when a measurement no longer counts. Nodes with very many replicas measure every 30 s.
	staleAfter = time.Minute
)

// sampler turns the reports of nodes into rates. A rate needs two reports: the first one of a replica says nothing.
type sampler struct {
	tracks map[string]*track // by replica uid
}

// track has the reports about one replica, the newest last.
type track struct {
	reports []report
	newest  *v1.ReplicaUsage
	heard   time.Time // by the clock of this server
}

type report struct {
	at    time.Time // by the clock of the node
	nanos uint64
}

func newSampler() *sampler { return &sampler{tracks: map[string]*track{}} }

// hear adds the newest report about each replica, and forgets replicas without one.
func (s *sampler) hear(now time.Time, reported map[string]*v1.ReplicaUsage) {
	for uid := range s.tracks {
		if reported[uid] == nil {
			delete(s.tracks, uid)
		}
	}
	for uid, u := range reported {
		t := s.tracks[uid]
		if t == nil {
			t = &track{}
			s.tracks[uid] = t
		}
		if t.newest != u {
			t.add(now, u)
		}
	}
}

func (t *track) add(now time.Time, u *v1.ReplicaUsage) {
	next := report{u.GetTime().AsTime(), u.GetCpuNanos()}
	if n := len(t.reports); n > 0 && (next.nanos < t.reports[n-1].nanos || !next.at.After(t.reports[n-1].at)) {
		t.reports = nil // its program was started again, or the node's clock was set
	}
	t.reports = append(t.reports, next)
	first := 0
	for first+2 < len(t.reports) && next.at.Sub(t.reports[first+1].at) >= averageOver {
		first++
	}
	t.reports = t.reports[first:]
	t.newest, t.heard = u, now
}

// usage is what a replica uses. ok is false if nothing was heard of it for too long.
func (s *sampler) usage(now time.Time, uid string) (u Usage, ok bool) {
	t := s.tracks[uid]
	if t == nil || now.Sub(t.heard) > staleAfter {
		return Usage{}, false
	}
	u = Usage{Memory: float64(t.newest.GetMemoryBytes()), MemoryKnown: t.newest.GetMemoryBytes() > 0, MetricProblem: t.newest.GetMetricProblem()}
	first, last := t.reports[0], t.reports[len(t.reports)-1]
	if passed := last.at.Sub(first.at); passed >= averageLeast {
		u.CPU, u.CPUKnown = float64(last.nanos-first.nanos)/float64(passed), true
	}
	if t.newest.Metric != nil && !math.IsNaN(t.newest.GetMetric()) {
		u.Metric, u.MetricKnown = t.newest.GetMetric(), true
	}
	return u, true
}
