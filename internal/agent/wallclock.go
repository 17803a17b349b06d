package agent

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

const conditionClock = "ClockSkewed"

// A clock is wrong above the first difference, and right again below the second, so that a
// value near the limit does not toggle every second.
const (
	skewBegins = 30 * time.Second
	skewEnds   = 20 * time.Second
)

// wallClock compares this machine's clock with the servers'. Nothing here depends on it:
// timeouts and pauses use the monotonic clock. But times in logs and events mislead if it
// is wrong.
type wallClock struct {
	// now is the machine's clock, and passed the monotonic one.
	now    func() time.Time
	passed func() time.Duration

	mu       sync.Mutex
	server   time.Time     // what a server said, ...
	received time.Duration // ... and when, by the monotonic clock
	skewed   bool
	reason   string
	since    time.Time
}

func newWallClock() *wallClock {
	began := time.Now()
	return &wallClock{now: time.Now, passed: func() time.Duration { return time.Since(began) }}
}

// setServerTime records a server's time.
func (c *wallClock) setServerTime(sent *timestamppb.Timestamp) {
	if sent == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.received = sent.AsTime(), c.passed()
}

// condition reports whether the clock is wrong now. It is nil before a server has sent its
// time.
func (c *wallClock) condition() *v1.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.server.IsZero() {
		return nil
	}
	now := c.now()
	// The servers' clock advanced by the monotonic time; this one may have been set
	// meanwhile.
	skew := now.Round(0).Sub(c.server.Add(c.passed() - c.received))
	limit := skewBegins
	if c.skewed {
		limit = skewEnds
	}
	if skewed := skew.Abs() > limit; skewed != c.skewed || c.since.IsZero() {
		c.skewed, c.reason, c.since = skewed, "", now
		if skewed {
			c.reason = fmt.Sprintf("The clock of this machine is %s the servers': set it right, best by time synchronization (NTP); times in its logs mislead until then.", apart(skew))
		}
	}
	return &v1.Condition{Type: conditionClock, Status: c.skewed, Reason: c.reason, ChangeTime: timestamppb.New(c.since)}
}

func apart(skew time.Duration) string {
	text := spec.FormatDuration(skew.Abs().Round(time.Second))
	if skew < 0 {
		return text + " behind"
	}
	return text + " ahead of"
}
