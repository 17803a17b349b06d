package garbage

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestALargeHeapIsCollectedBeforeTheRuntimeWould(t *testing.T) {
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

func TestNobodyWaitsWhileNothingIsCollected(t *testing.T) {
	for _, c := range []*Collector{nil, New(Options{})} {
		if c.Pause(t.Context()) {
			t.Error("paused")
		}
		c.Holder()()
	}
}

func TestWorkPausesUntilTheEnd(t *testing.T) {
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

// crowd is of nodes that say something every second.
func crowd(ctx context.Context, c *Collector, size int) (longest func() time.Duration) {
	waits := make(chan time.Duration, 100*size)
	for n := range size {
		hold := c.Holder()
		go func() {
			time.Sleep(time.Duration(n) * time.Second / time.Duration(size))
			for ctx.Err() == nil {
				began := time.Now()
				hold()
				waits <- time.Since(began)
				time.Sleep(time.Second)
			}
		}()
	}
	return func() time.Duration {
		var most time.Duration
		for range len(waits) {
			most = max(most, <-waits)
		}
		return most
	}
}

func TestMessagesAreHeldForAMomentOnly(t *testing.T) {
	for _, tt := range []struct {
		name       string
		patience   time.Duration
		collection time.Duration
		want       time.Duration // the longest wait
	}{
		{"a short collection", time.Second, 100 * time.Millisecond, 100 * time.Millisecond},
		{"a long one", time.Second, 5 * time.Second, longestHold},
		{"little patience", 200 * time.Millisecond, 5 * time.Second, 200 * time.Millisecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := New(Options{Patience: func() time.Duration { return tt.patience }})
				ctx, cancel := context.WithCancel(t.Context())
				longest := crowd(ctx, c, 1000)
				time.Sleep(3 * time.Second)
				if got := longest(); got > 0 {
					t.Errorf("before the collection somebody waits for %s", got)
				}
				ended := make(chan struct{})
				over := c.begin()
				go func() {
					c.hold(ctx, over)
					close(ended)
				}()
				time.Sleep(tt.collection)
				c.end()
				<-ended
				time.Sleep(time.Second)
				// Those who are let go after the end are let go over a fifth of the patience.
				if got := longest(); got < tt.want/2 || got > tt.want+longestHold/hurry+50*time.Millisecond {
					t.Errorf("the longest wait was %s, want about %s", got, tt.want)
				}
				time.Sleep(3 * time.Second)
				if got := longest(); got > 0 {
					t.Errorf("after the collection somebody waits for %s", got)
				}
				cancel()
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// A connection that brings a lot would fall behind if it waited again and again, and with it the heartbeats in it.
func TestAConnectionWaitsOnceInACollection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{})
		hold := c.Holder()
		for collection := range 2 {
			over := c.begin()
			ended := make(chan struct{})
			go func() {
				c.hold(t.Context(), over)
				close(ended)
			}()
			synctest.Wait()
			began := time.Now()
			hold()
			if time.Since(began) < longestHold {
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
			<-ended
		}
	})
}

func TestNobodyIsHeldWithoutPatience(t *testing.T) {
	c := New(Options{Patience: func() time.Duration { return 0 }})
	over := c.begin()
	defer c.end()
	c.hold(t.Context(), over)
	c.Holder()()
}

func TestWhoWaitsIsLetGoWhenTheServerStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{})
		ctx, cancel := context.WithCancel(t.Context())
		over := c.begin()
		go c.hold(ctx, over)
		synctest.Wait()
		released := make(chan struct{})
		go func() {
			c.Holder()()
			close(released)
		}()
		synctest.Wait()
		cancel()
		c.end()
		<-released
	})
}

func TestACollectionIsACollection(t *testing.T) {
	before := readHeap().cycles
	c := New(Options{Patience: func() time.Duration { return time.Millisecond }})
	c.collect(t.Context(), before)
	if after := readHeap().cycles; after == before {
		t.Error("nothing was collected")
	}
	if c.over != nil || c.holding || c.held != 0 {
		t.Errorf("it goes on: %+v", c)
	}
}
