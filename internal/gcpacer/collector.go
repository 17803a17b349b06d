package gcpacer

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// largeHeap is to what a heap may grow for which a server begins collections itself. Those of smaller ones are over
	// before anybody notices.
	largeHeap = 256 << 20
	// share of the garbage that the runtime would let there be, in percent, is when it begins: the runtime begins at
	// seventy at the earliest.
	share = 60
	// largeLook is how often a large heap is looked at, and smallLook a small one.
	largeLook, smallLook = 20 * time.Millisecond, time.Second
	// endLook is how often it is looked whether a collection has ended.
	endLook = 5 * time.Millisecond
	// settleTime is left to what is under way.
	settleTime = 100 * time.Millisecond
	// longestHold is how long the messages of nodes wait at most.
	longestHold = 1500 * time.Millisecond
)

// Options say what a [Collector] has to heed.
type Options struct {
	// Patience is how long nobody minds if the messages of nodes wait; 1.5 s if nil, and never more.
	Patience func() time.Duration
	// Pressed reports whether strangers keep the process busy, and nobody else does. What they have it do is no reason
	// to let garbage grow; nil never does.
	Pressed func() bool
}

// Collector begins collections when the heap is large, and knows who may go on meanwhile. The methods of a nil
// Collector let everybody.
type Collector struct {
	options Options

	mu sync.Mutex
	// over is closed when the collection that is under way has ended; nil while none is.
	over chan struct{}
	// begun counts collections.
	begun uint64
	// patience is how long messages that come now have to wait, and heldUntil until when those do that came last.
	patience  time.Duration
	heldUntil time.Time
}

// New returns a Collector that does nothing before [Collector.Run].
func New(o Options) *Collector { return &Collector{options: o} }

// Run follows the heap until ctx ends, unless somebody else has said how to collect.
func (c *Collector) Run(ctx context.Context) error {
	if !ownGC() {
		return nil
	}
	var following sync.WaitGroup
	following.Go(func() { followAllowance(ctx, c.options.Pressed) })
	defer following.Wait()
	looks := time.NewTimer(smallLook)
	defer looks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-looks.C:
		}
		h := readHeap()
		if h.due() {
			c.collect(ctx, h.cycles)
		}
		if h.large() {
			looks.Reset(largeLook)
		} else {
			looks.Reset(smallLook)
		}
	}
}

// collect collects what is garbage, once those who do a lot of work have paused, unless the runtime has done so
// meanwhile. It lets them go on when everything has been looked through, which is before everything is swept up.
func (c *Collector) collect(ctx context.Context, cycles uint64) {
	c.begin()
	sleep(ctx, settleTime)
	if readHeap().cycles != cycles {
		c.end()
		return
	}
	c.hold()
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(runtime.GC)
	for readHeap().cycles == cycles && ctx.Err() == nil {
		sleep(ctx, endLook)
	}
	c.end()
}

func (c *Collector) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = make(chan struct{})
	c.begun++
}

// hold has the messages of nodes wait from now on, until the end.
func (c *Collector) hold() {
	patience := longestHold
	if c.options.Patience != nil {
		patience = min(patience, c.options.Patience())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patience = patience
}

func (c *Collector) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.over)
	c.heldUntil = time.Now().Add(c.patience)
	c.over, c.patience = nil, 0
}

// Holds reports whether messages of nodes wait. What has not been heard may have been said then.
func (c *Collector) Holds() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patience > 0 || time.Now().Before(c.heldUntil)
}

// Pause is for who does a lot of work that nobody waits for: it waits until no collection is under way, or ctx ends,
// and reports whether it had to.
func (c *Collector) Pause(ctx context.Context) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	over := c.over
	c.mu.Unlock()
	if over == nil {
		return false
	}
	select {
	case <-over:
	case <-ctx.Done():
	}
	return true
}

// Holder is for one of the many who bring little, for instance a connection of a node. What it returns is called
// whenever something was brought, by one goroutine at a time. While a collection is under way it waits for a moment,
// once in each collection. All wait equally long, be it over meanwhile or not, so they go on one after the other as
// they came: many at once would be in everybody's way. It needs no memory: who does is to wait.
func (c *Collector) Holder() (hold func()) {
	if c == nil {
		return func() {}
	}
	var last uint64 // collection in which it waited
	timer := time.NewTimer(longestHold)
	timer.Stop()
	return func() {
		c.mu.Lock()
		patience := c.patience
		wait := patience > 0 && last != c.begun
		if wait {
			last = c.begun
		}
		c.mu.Unlock()
		if wait {
			timer.Reset(patience)
			<-timer.C
		}
	}
}

// heap is what is seen of the heap at one look.
type heap struct {
	size, kept, goal uint64
	cycles           uint64
}

// large reports whether collections are noticed by others.
func (h heap) large() bool { return h.goal >= largeHeap }

// due reports whether it is time to collect.
func (h heap) due() bool {
	return h.large() && h.goal > h.kept && h.size >= h.kept+(h.goal-h.kept)/100*share
}

func readHeap() heap {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/gc/heap/goal:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(samples)
	return heap{
		size: samples[0].Value.Uint64(), kept: samples[1].Value.Uint64(),
		goal: samples[2].Value.Uint64(), cycles: samples[3].Value.Uint64(),
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
