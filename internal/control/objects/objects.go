package objects

import (
	"context"
	"errors"
	"log/slog"
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
	// DefaultEpoch is how long an epoch of the garbage lasts. Chunks are referred to minutes after they were written, and
	// an epoch must be longer than that.
	DefaultEpoch = 10 * time.Minute
	// DefaultScrubEvery is how often all chunks of a node are read and checked.
	DefaultScrubEvery = 7 * 24 * time.Hour
	// leastEpoch is more than the time in which uploads refer to what they have written.
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

	// Delay, RepairRate, Epoch and ScrubEvery have the defaults above if they are 0. Each call of Settings, if not nil,
	// replaces the first two.
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
	// Reason is a word such as "repair-started", and Message a sentence.
	Reason, Message string
}

// ErrNotLeading is what a server answers that does not run the loops.
var ErrNotLeading = errors.New("this server does not lead the names of objects: ask the one that does")

// Loops keep what the object store promises. All methods may be called at once; Run by one goroutine at a time.
type Loops struct {
	o        Options
	failures telemetry.Failures
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
	return &Loops{o: o}, nil
}

// Run runs the loops until ctx ends.
func (l *Loops) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}
