package streams

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/state"
)

// The reasons of the events that say who reached into a replica.
const (
	reasonExec    = "Exec"
	reasonCopy    = "Copy"
	reasonForward = "Forward"
)

// record says in an event who is about to reach into a replica, and what for. A call that cannot be recorded is refused, so
// that nobody gets in unseen.
func (s *Streams) record(ctx context.Context, r *v1.Replica, reason, message string) error {
	if reason == reasonForward && !s.forwards.first(s.Actor(ctx)+" "+r.GetMetadata().GetUid()+" "+message, s.Now()) {
		return nil
	}
	_, err := s.Propose(ctx, func(_ *state.Snapshot, b *state.Batch) error {
		b.Create(s.Event(ctx, r, reason, message))
		return nil
	})
	if err != nil {
		return fmt.Errorf("the call was not begun, because the cluster could not record it: %w", err)
	}
	return nil
}

// maxRecorded is how long the message of such an event is, at most.
const maxRecorded = 1000

// quoted shows a command as a line on which no argument can pretend to be something else: all that is not plain text is
// quoted, and control characters are escaped.
func quoted(command []string) string {
	var b strings.Builder
	for i, arg := range command {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(word(arg))
		if b.Len() > maxRecorded {
			return cutAt(b.String(), maxRecorded)
		}
	}
	return b.String()
}

// plain are the characters that need no quotes.
const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-"

func word(arg string) string {
	arg = cutAt(arg, maxRecorded)
	if arg != "" && strings.Trim(arg, plain) == "" {
		return arg
	}
	return strconv.Quote(arg)
}

// cutAt cuts a text in front of the character that exceeds a number of bytes.
func cutAt(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && text[most]&0xC0 == 0x80 {
		most--
	}
	return text[:most] + "…"
}

func execMessage(start *v1.ExecStart) string {
	message := quoted(start.GetCommand())
	if user := start.GetUser(); user != "" {
		message += " (as user " + word(user) + ")"
	}
	return message
}

func copyMessage(start *v1.CopyStart) string {
	if start.GetInto() {
		return "files into " + word(start.GetPath())
	}
	return "files from " + word(start.GetPath())
}

func forwardMessage(start *v1.ForwardStart) string {
	return fmt.Sprintf("connections to port %d", start.GetPort())
}

// One event stands for the connections of one caller to one port of one replica within this time: a browser opens many.
const (
	forwardSilence = 10 * time.Minute
	maxForwards    = 4096
)

// forwards remembers which connections were recorded lately.
type forwards struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

// first reports whether a connection must be recorded.
func (f *forwards) first(what string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at, known := f.seen[what]; known && now.Sub(at) < forwardSilence && !now.Before(at) {
		return false
	}
	if f.seen == nil || len(f.seen) >= maxForwards {
		f.seen = map[string]time.Time{}
	}
	f.seen[what] = now
	return true
}
