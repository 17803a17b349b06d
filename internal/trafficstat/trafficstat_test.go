package trafficstat

import (
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsFollowEachOtherWithoutGaps(t *testing.T) {
	for bucket := range Buckets {
		from, to := Bounds(bucket)
		if got := Bucket(from); got != bucket {
			t.Errorf("bucket %d begins at %v, which is in bucket %d", bucket, from, got)
		}
		if bucket == Buckets-1 {
			break
		}
		if got := Bucket(to); got != bucket+1 {
			t.Errorf("bucket %d ends at %v, which is in bucket %d", bucket, to, got)
		}
		if width := float64(to-from) / float64(from); bucket > 0 && width > 0.07 {
			t.Errorf("bucket %d from %v to %v is %.0f %% wide", bucket, from, to, 100*width)
		}
	}
	if got := Bucket(time.Hour); got != Buckets-1 {
		t.Errorf("an hour is in bucket %d, want the last", got)
	}
	if got := Bucket(-time.Second); got != 0 {
		t.Errorf("a negative latency is in bucket %d", got)
	}
}

func TestQuantilesAreRightWithinFivePercent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		us := rapid.SliceOfN(rapid.Int64Range(100, 100_000_000), 1, 500).Draw(rt, "microseconds")
		q := rapid.Float64Range(0.01, 1).Draw(rt, "q")
		var c Counts
		for _, n := range us {
			c.Add(time.Duration(n) * time.Microsecond)
		}
		slices.Sort(us)
		want := float64(us[int(math.Ceil(q*float64(len(us))))-1])
		got := float64(c.Quantile(q).Microseconds())
		if math.Abs(got-want)/want > 0.07 {
			rt.Errorf("the quantile %.3f of %d latencies is %.0f µs, want %.0f", q, len(us), got, want)
		}
	})
}

func TestMergedCountsAreThoseOfAll(t *testing.T) {
	var one, other, all Counts
	for i := range 1000 {
		d := time.Duration(i*i) * time.Microsecond
		all.Add(d)
		if i%3 == 0 {
			one.Add(d)
		} else {
			other.Add(d)
		}
	}
	one.Merge(other)
	if !slices.Equal(one, all) {
		t.Error("the sum of the parts differs from the counts of all")
	}
	one.Merge(make([]int64, Buckets+10))
	one.Merge(append(make([]int64, Buckets+10), 5))
	if got := one.Total(); got != 1005 {
		t.Errorf("%d latencies after those of a version with more buckets, want 1005", got)
	}
	if got := (Counts{}).Quantile(0.5); got != 0 {
		t.Errorf("the median of nothing is %v", got)
	}
}

func TestRecorderLosesNothing(t *testing.T) {
	var r Recorder
	var taken Counts
	var requests sync.WaitGroup
	for range 4 {
		requests.Go(func() {
			for i := range 1000 {
				r.Observe(time.Duration(i) * time.Millisecond)
			}
		})
	}
	for range 100 {
		taken.Merge(r.Take())
	}
	requests.Wait()
	taken.Merge(r.Take())
	if got := taken.Total(); got != 4000 {
		t.Errorf("%d of 4000 latencies were counted", got)
	}
}
