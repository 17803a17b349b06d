package traffic

import (
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/trafficstat"
)

// How exactly, and for how long, requests and their latencies are remembered. The longest that somebody asks for is the time
// without requests after which a service is scaled to zero.
var (
	countLevels = []level{
		{time.Second, 2 * time.Minute},
		{time.Minute, time.Hour},
		{10 * time.Minute, 25 * time.Hour},
	}
	latencyLevels = []level{
		{10 * time.Second, 2 * time.Minute},
		{time.Minute, time.Hour},
	}
)

// key is what a sample is about.
type key struct{ route, service, revision string }

// counts are numbers of requests and bytes.
type counts struct{ requests, errors, received, sent int64 }

func (c *counts) add(other counts) {
	c.requests += other.requests
	c.errors += other.errors
	c.received += other.received
	c.sent += other.sent
}

// latencies are a histogram without the empty buckets at both ends.
type latencies struct {
	first   int
	buckets []uint32
}

func mergeLatencies(into *latencies, other latencies) {
	if len(other.buckets) == 0 {
		return
	}
	if len(into.buckets) == 0 {
		*into = latencies{first: other.first, buckets: append([]uint32(nil), other.buckets...)}
		return
	}
	first := min(into.first, other.first)
	end := max(into.first+len(into.buckets), other.first+len(other.buckets))
	if first < into.first || end > into.first+len(into.buckets) {
		wider := make([]uint32, end-first)
		copy(wider[into.first-first:], into.buckets)
		into.first, into.buckets = first, wider
	}
	for i, n := range other.buckets {
		into.buckets[other.first-first+i] += n
	}
}

// latenciesOf reads a sample, which may be from a node of another version or one that lies.
func latenciesOf(given []int64) latencies {
	given = given[:min(len(given), trafficstat.Buckets)]
	first, end := -1, 0
	for i, n := range given {
		if n > 0 {
			if first < 0 {
				first = i
			}
			end = i + 1
		}
	}
	if first < 0 {
		return latencies{}
	}
	l := latencies{first: first, buckets: make([]uint32, end-first)}
	for i := range l.buckets {
		l.buckets[i] = uint32(min(max(given[first+i], 0), 1<<31))
	}
	return l
}

// addTo adds the latencies to a sum.
func (l latencies) addTo(sum *trafficstat.Counts) {
	full := make([]int64, l.first+len(l.buckets))
	for i, n := range l.buckets {
		full[l.first+i] = int64(n)
	}
	sum.Merge(full)
}

// series is what all nodes have reported about one key.
type series struct {
	counts    window[counts]
	latencies window[latencies]
	last      time.Duration // when something came
}

func newSeries() *series {
	return &series{
		counts:    window[counts]{levels: countLevels, merge: (*counts).add},
		latencies: window[latencies]{levels: latencyLevels, merge: mergeLatencies},
	}
}

func (s *series) add(now time.Duration, c counts, l latencies) {
	s.last = now
	if c != (counts{}) {
		s.counts.add(now, c)
	}
	if len(l.buckets) > 0 {
		s.latencies.add(now, l)
	}
}

// sums are figures of some time.
type sums struct {
	counts
	latencies trafficstat.Counts
}

func (s *series) since(from time.Duration, sum *sums) {
	s.counts.since(from, sum.add)
	s.latencies.since(from, func(l latencies) { l.addTo(&sum.latencies) })
}

func countsOf(sample *v1.TrafficSample) counts {
	return counts{
		requests: max(sample.GetRequests(), 0), errors: min(max(sample.GetErrors(), 0), max(sample.GetRequests(), 0)),
		received: max(sample.GetReceived(), 0), sent: max(sample.GetSent(), 0),
	}
}
