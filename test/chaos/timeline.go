package chaos

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// timeline is what was done when. All times of a run are since its beginning,
// by the monotonic clock.
type timeline struct {
	began time.Time

	mu     sync.Mutex
	lines  []string
	faults []span
}

// span is a fault from its beginning to its end.
type span struct {
	what       string
	begin, end time.Duration
}

func newTimeline() *timeline { return &timeline{began: time.Now()} }

func (t *timeline) now() time.Duration { return time.Since(t.began) }

func (t *timeline) note(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, fmt.Sprintf("%8.3fs  %s", t.now().Seconds(), fmt.Sprintf(format, args...)))
}

func (t *timeline) fault(s span) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, s)
}

func (t *timeline) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.lines, "\n") + "\n"
}
