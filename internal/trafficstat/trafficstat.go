// Package trafficstat counts latencies in buckets whose width grows with the latency, so that a few hundred numbers
// describe any number of requests, and quantiles of them are right within about five percent. Nodes count, leaders add
// up and ask for quantiles; both sides must have the same buckets.
//
// It knows no routes and no messages: counts travel as plain numbers.
package trafficstat

import (
	"math/bits"
	"sync/atomic"
	"time"
)

const (
	// Latencies are counted in microseconds. All below first are in bucket 0; every doubling above it has steps buckets.
	first, firstBits = 64, 6
	steps, stepBits  = 16, 4
	// last is the exponent of the first microsecond that is too long for a bucket of its own, about 134 seconds.
	last = 27
	// Buckets is the number of buckets. The last one has everything that is longer.
	Buckets = 1 + (last-firstBits)*steps + 1
)

// Bucket returns the bucket of a latency.
func Bucket(d time.Duration) int {
	us := d.Microseconds()
	if us < first {
		return 0
	}
	exponent := bits.Len64(uint64(us)) - 1
	if exponent >= last {
		return Buckets - 1
	}
	step := int(us>>(exponent-stepBits)) & (steps - 1)
	return 1 + (exponent-firstBits)*steps + step
}

// Bounds returns the shortest latency of a bucket, and that of the next one. The last bucket has no end, and counts as
// if all of it were at its beginning.
func Bounds(bucket int) (from, to time.Duration) {
	return start(bucket), start(bucket + 1)
}

func start(bucket int) time.Duration {
	if bucket <= 0 {
		return 0
	}
	bucket = min(bucket, Buckets-1) - 1
	exponent, step := firstBits+bucket/steps, bucket%steps
	return time.Duration(int64(steps+step)<<(exponent-stepBits)) * time.Microsecond
}

// Counts are the numbers of latencies in each bucket. Those after the last one that is not zero may be missing.
type Counts []int64

// Add counts one latency.
func (c *Counts) Add(d time.Duration) { c.add(Bucket(d), 1) }

func (c *Counts) add(bucket int, n int64) {
	for len(*c) <= bucket {
		*c = append(*c, 0)
	}
	(*c)[bucket] += n
}

// Merge adds the counts of another sum. Buckets that this version does not know count as the last one.
func (c *Counts) Merge(other []int64) {
	for bucket, n := range other {
		if n > 0 {
			c.add(min(bucket, Buckets-1), n)
		}
	}
}

// Total is the number of latencies.
func (c Counts) Total() (n int64) {
	for _, of := range c {
		n += of
	}
	return n
}

// Quantile returns the latency that the share q of all stay below, such as 0.99; 0 without latencies.
func (c Counts) Quantile(q float64) time.Duration {
	total := c.Total()
	if total == 0 {
		return 0
	}
	rank := min(max(q, 0), 1) * float64(total)
	var below float64
	var found time.Duration
	for bucket, n := range c {
		if n == 0 {
			continue
		}
		from, to := Bounds(bucket)
		share := min((rank-below)/float64(n), 1)
		found = from + time.Duration(share*float64(to-from))
		if below += float64(n); below >= rank {
			break
		}
	}
	return found
}

// Recorder counts latencies of concurrent requests.
type Recorder struct{ counts [Buckets]atomic.Int64 }

// Observe counts one latency.
func (r *Recorder) Observe(d time.Duration) { r.counts[Bucket(d)].Add(1) }

// Take returns what was counted since the last call.
func (r *Recorder) Take() Counts {
	var taken Counts
	for bucket := range r.counts {
		if r.counts[bucket].Load() != 0 {
			taken.add(bucket, r.counts[bucket].Swap(0))
		}
	}
	return taken
}
