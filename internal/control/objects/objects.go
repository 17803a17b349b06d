package objects

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/retentionclock"
	"github.com/cloudless/cloudless/internal/telemetry"
)

const (
	// DefaultDelay is how long a node may be away before others copy its chunks. A reboot with updates takes minutes, and
	// copying the disk of a node takes hours; two more nodes rarely fail meanwhile.
	DefaultDelay = 10 * time.Minute
	// DefaultRepairRate is how many bytes a second are copied while machines are busy: half of a line of 1 Gbit/s.
	DefaultRepairRate = 64 << 20
	// DefaultEpoch is how long an epoch of the garbage lasts.
	DefaultEpoch = 10 * time.Minute
	// DefaultScrubEvery is how often all chunks of a node are read and checked.
	DefaultScrubEvery = 7 * 24 * time.Hour
	// leastEpoch is more than the time after which uploads refer to what they have written, and more than batchTimeout.
	leastEpoch = 6 * time.Minute
)

// Options configures the loops.
type Options struct {
	Names  object.Names
	Disks  object.Disks
	Logger *slog.Logger
	// Now is the clock of what expires. If nil, it is one that distrusts jumps.
	Now func() time.Time
	// Idle is whether the machines have time: then repairs exceed their rate. It may be nil: they never do.
	Idle func() bool
	// OfflineSince is since when a node is offline, if it is. It may be nil: then the loops know only since when this
	// server has no connection to it.
	OfflineSince func(node string) (time.Time, bool)
	// Removed is whether a node was removed from the cluster for good. It may be nil: no node ever is.
	Removed func(node string) bool
	// Tell announces what users should know. It may be nil.
	Tell func(Event)
	// Metrics may be nil.
	Metrics *telemetry.Objects

	// Delay, RepairRate, Epoch and ScrubEvery have the defaults above if they are 0. Settings, if not nil, replaces the
	// first two whenever they are needed.
	Delay      time.Duration
	RepairRate int64
	Epoch      time.Duration
	ScrubEvery time.Duration
	Settings   func() (delay time.Duration, repairRate int64)
}

// Event is something that users should know.
type Event struct {
	// Node is the UID of the node that it is about; it may be empty.
	Node string
	// Warning is whether somebody should do something about it.
	Warning bool
	// Reason is a word such as RepairStarted, and Message a sentence.
	Reason, Message string
}

// The reasons of events.
const (
	RepairStarted  = "repair-started"
	RepairFinished = "repair-finished"
	DataLost       = "data-lost"
	DataDamaged    = "data-damaged"
	Drained        = "drained"
)

// ErrNotLeading is what a server answers that does not run the loops.
var ErrNotLeading = errors.New("this server does not lead the names of objects: ask the one that does")

// Loops keep what the object store promises. All methods may be called at once; Run by one goroutine at a time.
type Loops struct {
	o        Options
	failures telemetry.Failures

	mu sync.Mutex
	// term is what is known since Run began; nil while it does not run.
	term *term
}

// New returns loops. Run runs them.
func New(o Options) (*Loops, error) {
	if o.Names == nil || o.Disks == nil || o.Logger == nil {
		return nil, errors.New("the loops of the object store need names, disks and a logger")
	}
	if o.Now == nil {
		o.Now = retentionclock.New().Now
	}
	if o.Idle == nil {
		o.Idle = func() bool { return false }
	}
	if o.OfflineSince == nil {
		o.OfflineSince = func(string) (time.Time, bool) { return time.Time{}, false }
	}
	if o.Removed == nil {
		o.Removed = func(string) bool { return false }
	}
	if o.Tell == nil {
		o.Tell = func(Event) {}
	}
	o.Delay, o.RepairRate = orDefault(o.Delay, DefaultDelay), orDefault(o.RepairRate, DefaultRepairRate)
	o.Epoch, o.ScrubEvery = orDefault(o.Epoch, DefaultEpoch), orDefault(o.ScrubEvery, DefaultScrubEvery)
	if o.Epoch < leastEpoch || o.Delay < 0 || o.RepairRate < 0 || o.ScrubEvery < 0 {
		return nil, errors.New("an epoch of the object store is at least six minutes, and delay, rate and interval are not negative")
	}
	l := &Loops{o: o}
	o.Disks.OnDamage(l.damaged)
	return l, nil
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// settings are the delay and the rate of repairs, now.
func (l *Loops) settings() (delay time.Duration, rate int64) {
	if l.o.Settings == nil {
		return l.o.Delay, l.o.RepairRate
	}
	delay, rate = l.o.Settings()
	return orDefault(delay, l.o.Delay), orDefault(rate, l.o.RepairRate)
}

// Run runs the loops until ctx ends.
func (l *Loops) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := newTerm(ctx)
	l.setTerm(t)
	defer l.setTerm(nil)
	var running sync.WaitGroup
	for _, loop := range []func(context.Context, *term){
		l.followNodes, l.keepRepaired, l.keepCompared, l.collectGarbage, l.expire, l.keepScrubbed, l.replaceDamaged,
	} {
		running.Go(func() { loop(ctx, t) })
	}
	running.Wait()
	return ctx.Err()
}

func (l *Loops) setTerm(t *term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.term = t
}

// leading returns the current term, or nil.
func (l *Loops) leading() *term {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.term
}

// note logs a failure once, not in every round.
func (l *Loops) note(ctx context.Context, message string, err error, args ...any) {
	l.failures.Note(ctx, l.o.Logger, message, err, args...)
}
