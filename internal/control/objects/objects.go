package objects

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/retentionclock"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

const (
	// DefaultEpoch is how long an epoch of the garbage lasts.
	DefaultEpoch = 10 * time.Minute
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
	// OfflineSince is since when a node is offline, if it is. It may be nil: then the loops know only since when this
	// server has no connection to it.
	OfflineSince func(node string) (time.Time, bool)
	// Removed is whether a node was removed from the cluster for good. It may be nil: no node ever is.
	Removed func(node string) bool
	// Tell announces what users should know. It may be nil.
	Tell func(Event)
	// Metrics may be nil.
	Metrics *telemetry.Objects
	// Settings are those of the cluster, now.
	Settings func() spec.Storage
	// Epoch has the default above if it is 0.
	Epoch time.Duration
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
	if o.Names == nil || o.Disks == nil || o.Logger == nil || o.Settings == nil {
		return nil, errors.New("the loops of the object store need names, disks, a logger and settings")
	}
	if o.Now == nil {
		o.Now = retentionclock.New().Now
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
	if o.Epoch = cmp.Or(o.Epoch, DefaultEpoch); o.Epoch < leastEpoch {
		return nil, errors.New("an epoch of the object store is at least six minutes")
	}
	l := &Loops{o: o}
	o.Disks.OnDamage(l.damaged)
	return l, nil
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
