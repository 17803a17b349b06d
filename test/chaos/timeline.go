package chaos

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
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

// keepEvents writes what the cluster says of itself into a file, with the times of the timeline.
func (l *lab) keepEvents(ctx context.Context, path string) error {
	if l.admin == nil {
		return nil // the first server never ran
	}
	var b strings.Builder
	_, err := client.AllPages(func(page *v1.Page) ([]*v1.Event, string, error) {
		answer, err := l.admin.Events().ListEvents(ctx, &v1.ListEventsRequest{Page: page})
		for _, event := range answer.GetItems() {
			e := event.GetSpec()
			fmt.Fprintf(&b, "%8.3fs  %s %s %s: %s\n", e.GetTime().AsTime().Sub(l.told.began.Round(0)).Seconds(), e.GetObjectKind(), e.GetObjectName(), e.GetReason(), e.GetMessage())
		}
		return nil, answer.GetNext(), err
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
