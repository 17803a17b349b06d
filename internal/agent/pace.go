package agent

import (
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/spec"
)

// Bounds for the report interval, whatever the server says: a typo must neither stop the
// agent nor keep it busy.
const (
	paceMost  = 50 * time.Millisecond
	paceLeast = time.Hour
)

// pace is how often the agent reports. Servers may change it at any time.
type pace struct {
	every   *atomic.Int64
	changed chan struct{} // has a token until the change was handled
}

func newPace(every time.Duration) pace {
	p := pace{every: new(atomic.Int64), changed: make(chan struct{}, 1)}
	p.every.Store(int64(every))
	return p
}

func (p pace) now() time.Duration { return time.Duration(p.every.Load()) }

// set changes the interval. Empty text changes nothing.
func (p pace) set(text string) error {
	if text == "" {
		return nil
	}
	every, err := spec.ParseDuration(text)
	if err != nil {
		return err
	}
	every = min(max(every, paceMost), paceLeast)
	if p.every.Swap(int64(every)) == int64(every) {
		return nil
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
	return nil
}
