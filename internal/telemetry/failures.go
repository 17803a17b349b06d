package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
)

// Failures logs what a loop keeps failing at once for each reason, not in every round.
type Failures struct {
	mu   sync.Mutex
	seen map[string]string // reasons by what failed
}

// Note logs that something failed, unless it failed for the same reason before. Without an error, or when ctx has ended,
// it forgets the failure. The arguments are those of the log, and tell failures with the same message apart.
func (f *Failures) Note(ctx context.Context, logger *slog.Logger, message string, err error, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := message + fmt.Sprintf(" %q", args)
	if err == nil || ctx.Err() != nil {
		delete(f.seen, key)
		return
	}
	if f.seen[key] == err.Error() {
		return
	}
	if f.seen == nil {
		f.seen = map[string]string{}
	}
	f.seen[key] = err.Error()
	logger.WarnContext(ctx, message, append(args, "error", err)...)
}
