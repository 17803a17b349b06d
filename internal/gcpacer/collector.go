package gcpacer

import (
	"context"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// largeHeap is the size above which a server starts collections itself. Collections of smaller heaps are too
	// short to matter.
	largeHeap = 256 << 20
	// share of the garbage that the runtime would allow, in percent, at which a collection starts: the runtime starts
	// at seventy at the earliest.
	share = 60
	// largeLook is how often a large heap is checked, and smallLook a small one.
	largeLook, smallLook = 20 * time.Millisecond, time.Second
	// endLook is how often it checks whether a collection has ended.
	endLook = 5 * time.Millisecond
	// settleTime lets work in progress finish.
	settleTime = 100 * time.Millisecond
	// longestHold is how long the messages of nodes wait at most.
	longestHold = 1500 * time.Millisecond
)

// Options are the settings of a [Collector].
type Options struct {
	// Patience returns how long the messages of nodes may wait without harm; 1.5 s if nil, and never more.
	Patience func() time.Duration
	// Pressed reports whether unauthenticated callers keep the process busy and others do not. Their work is no reason
	// to let garbage grow. Nil means never.
	Pressed func() bool
}

// Collector starts collections when the heap is large, and decides which goroutines may continue meanwhile. A nil
// Collector stops none.
type Collector struct {
	options Options

	mu sync.Mutex
	// over is closed when the current collection has ended; nil while there is none.
	over chan struct{}
	// begun counts collections.
	begun uint64
	// patience is how long new messages have to wait, and heldUntil is when the last ones may continue.
	patience  time.Duration
	heldUntil time.Time
}

// New returns a Collector that does nothing before [Collector.Run].
func New(o Options) *Collector { return &Collector{options: o} }

// Run follows the heap until ctx ends, unless the user sets the pace.
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

// collect runs a collection after bulk work has paused, unless the runtime has done so meanwhile. Bulk work continues
// when the heap is scanned, which is before it is swept.
func (c *Collector) collect(ctx context.Context, cycles uint64) {
	c.begin()
	_ = sleep.For(ctx, settleTime)
	if readHeap().cycles != cycles {
		c.end()
		return
	}
	c.hold()
	var sweeping sync.WaitGroup
	defer sweeping.Wait()
	sweeping.Go(runtime.GC)
	for readHeap().cycles == cycles && ctx.Err() == nil {
		_ = sleep.For(ctx, endLook)
	}
	c.end()
}

func (c *Collector) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = make(chan struct{})
	c.begun++
}

// hold makes the messages of nodes wait from now on, until the end.
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

// Holds reports whether messages of nodes wait. A node that seems silent may have sent something.
func (c *Collector) Holds() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.patience > 0 || time.Now().Before(c.heldUntil)
}

// Pause is for bulk work without a waiting caller. It waits until no collection runs, or ctx ends, and reports whether it
// had to wait.
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

// Holder is for one of many sources of small work, such as the connection of a node. The returned function is called
// whenever work has arrived, by one goroutine at a time. During a collection it waits for a moment, once in each
// collection. All wait equally long, even if the collection ends sooner, so that they continue one after the other as
// they came: all at once would delay others. It must not allocate: goroutines that allocate have to assist.
func (c *Collector) Holder() (hold func()) {
	if c == nil {
		return func() {}
	}
	var last uint64 // the collection in which it waited
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

// heap is what one check of the heap has found.
type heap struct {
	size, kept, goal uint64
	cycles           uint64
}

// large reports whether others would notice a collection.
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
