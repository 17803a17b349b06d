package gcpacer

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestLargeHeapIsCollectedBeforeTheRuntimeWould(t *testing.T) {
	const mb = 1 << 20
	for _, tt := range []struct {
		heap heap
		want bool
		why  string
	}{
		{heap{kept: 200 * mb, goal: 600 * mb, size: 439 * mb}, false, "there is room"},
		{heap{kept: 200 * mb, goal: 600 * mb, size: 441 * mb}, true, "most of the garbage is there"},
		{heap{kept: 50 * mb, goal: 150 * mb, size: 149 * mb}, false, "it is small"},
		{heap{kept: 20 * mb, goal: 500 * mb, size: 400 * mb}, true, "it has grown large"},
		{heap{kept: 200 * mb, goal: 150 * mb, size: 150 * mb}, false, "the runtime is about to begin itself"},
	} {
		if got := tt.heap.due(); got != tt.want {
			t.Errorf("%s: due is %v", tt.why, got)
		}
	}
}

func TestNothingWaitsWithoutACollection(t *testing.T) {
	for _, c := range []*Collector{nil, New(Options{})} {
		if c.Pause(t.Context()) {
			t.Error("paused")
		}
		c.Holder()()
		if c.Holds() {
			t.Error("messages are held")
		}
	}
}

func TestBulkWorkPausesUntilTheCollectionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{})
		c.begin()
		paused := make(chan bool)
		go func() { paused <- c.Pause(t.Context()) }()
		stopped, stop := context.WithCancel(t.Context())
		stop()
		if !c.Pause(stopped) {
			t.Error("who is stopped did not pause")
		}
		synctest.Wait()
		select {
		case <-paused:
			t.Error("went on before the end")
		default:
		}
		c.end()
		if !<-paused {
			t.Error("did not pause")
		}
		if c.Pause(t.Context()) {
			t.Error("paused after the end")
		}
	})
}

// crowd is a set of nodes that send something every second, one after the other.
func crowd(ctx context.Context, c *Collector, size int) (waits func() (longest time.Duration, atOnce int)) {
	type wait struct {
		took time.Duration
		end  time.Time
	}
	all := make(chan wait, 100*size)
	for n := range size {
		hold := c.Holder()
		go func() {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(size))
			for ctx.Err() == nil {
				began := time.Now()
				hold()
				all <- wait{time.Since(began), time.Now()}
				time.Sleep(time.Second)
			}
		}()
	}
	return func() (longest time.Duration, atOnce int) {
		ends := map[time.Time]int{}
		for range len(all) {
			w := <-all
			longest = max(longest, w.took)
			ends[w.end]++
			atOnce = max(atOnce, ends[w.end])
		}
		return longest, atOnce
	}
}

func TestMessagesAreHeldForAMomentOnly(t *testing.T) {
	for _, tt := range []struct {
		name       string
		patience   time.Duration
		collection time.Duration
		want       time.Duration // the longest wait
	}{
		{"a short collection", time.Minute, 100 * time.Millisecond, longestHold},
		{"a long one", time.Minute, 5 * time.Second, longestHold},
		{"little patience", 200 * time.Millisecond, 5 * time.Second, 200 * time.Millisecond},
		{"none", 0, 5 * time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(Options{Patience: func() time.Duration { return tt.patience }})
				ctx, cancel := context.WithCancel(t.Context())
				waits := crowd(ctx, c, 1000)
				time.Sleep(3 * time.Second)
				if longest, _ := waits(); longest > 0 {
					t.Errorf("before the collection an allocation waits for %s", longest)
				}
				c.begin()
				time.Sleep(settleTime)
				if longest, _ := waits(); longest > 0 {
					t.Errorf("before anything is looked through an allocation waits for %s", longest)
				}
				if c.Holds() {
					t.Error("messages are held too early")
				}
				c.hold()
				if c.Holds() != (tt.patience > 0) {
					t.Errorf("messages are held: %v", c.Holds())
				}
				time.Sleep(tt.collection)
				c.end()
				if c.Holds() != (tt.patience > 0) {
					t.Errorf("messages are held at the end: %v", c.Holds())
				}
				time.Sleep(2 * time.Second)
				if c.Holds() {
					t.Error("messages are held for good")
				}
				longest, atOnce := waits()
				if longest > tt.want || longest < tt.want-5*time.Millisecond {
					t.Errorf("the longest wait was %s, want %s", longest, tt.want)
				}
				// Others arrive when some continue.
				if atOnce > 2 {
					t.Errorf("%d went on at once", atOnce)
				}
				time.Sleep(3 * time.Second)
				if longest, _ := waits(); longest > 0 {
					t.Errorf("after the collection an allocation waits for %s", longest)
				}
				cancel()
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// A connection with much data would fall behind if it waited again and again, and so would its heartbeats.
func TestConnectionWaitsOnceInACollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{})
		hold := c.Holder()
		for collection := range 2 {
			c.begin()
			hold() // arrives too early to wait
			c.hold()
			began := time.Now()
			hold()
			if time.Since(began) != longestHold {
				t.Errorf("collection %d: it waited for %s", collection, time.Since(began))
			}
			began = time.Now()
			for range 10 {
				hold()
			}
			if again := time.Since(began); again > 0 {
				t.Errorf("collection %d: it waited again, for %s", collection, again)
			}
			c.end()
		}
	})
}

// A wait that allocates would have to assist the collection first.
func TestWaitingDoesNotAllocate(t *testing.T) {
	c := New(Options{Patience: func() time.Duration { return time.Microsecond }})
	hold := c.Holder()
	c.begin()
	defer c.end()
	c.hold()
	if n := testing.AllocsPerRun(100, func() {
		c.begun++ // as if the next one had begun
		hold()
	}); n > 0 {
		t.Errorf("it allocated %v times", n)
	}
}

func TestCollectRunsOneCollection(t *testing.T) {
	before := readHeap().cycles
	c := New(Options{Patience: func() time.Duration { return time.Millisecond }})
	c.collect(t.Context(), before)
	if after := readHeap().cycles; after == before {
		t.Error("nothing was collected")
	}
	if c.over != nil || c.patience != 0 {
		t.Errorf("it goes on: %+v", c)
	}
}

// The runtime may start a collection while others still settle: another one right after that is useless.
func TestCollectionOfTheRuntimeIsNotRepeated(t *testing.T) {
	c := New(Options{})
	before := readHeap().cycles
	runtime.GC()
	after := readHeap().cycles
	c.collect(t.Context(), before)
	if now := readHeap().cycles; now != after {
		t.Errorf("there were %d collections", now-before)
	}
	if c.over != nil || c.patience != 0 {
		t.Errorf("it goes on: %+v", c)
	}
}
