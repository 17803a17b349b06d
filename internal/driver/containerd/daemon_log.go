package containerd

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// routeLogs sends containerd's process-wide log to log. The level stays at info: at debug,
// every shim would open another socket.
func routeLogs(log *slog.Logger) *logHook {
	hook := &logHook{log: log.With("component", "containerd")}
	std := logrus.StandardLogger()
	std.SetLevel(logrus.InfoLevel)
	std.SetOutput(io.Discard)
	std.SetFormatter(noFormat{})
	std.ReplaceHooks(logrus.LevelHooks{})
	std.AddHook(hook)
	return hook
}

// noFormat avoids formatting lines that are discarded.
type noFormat struct{}

func (noFormat) Format(*logrus.Entry) ([]byte, error) { return nil, nil }

// logHook passes entries on, unless it is muted.
type logHook struct {
	log   *slog.Logger
	muted atomic.Bool
}

func (*logHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h *logHook) Fire(entry *logrus.Entry) error {
	ctx := entry.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := slogLevel(entry.Level)
	if harmless(entry) {
		level = slog.LevelDebug
	}
	if h.muted.Load() || !h.log.Enabled(ctx, level) {
		return nil
	}
	attrs := make([]slog.Attr, 0, len(entry.Data))
	for _, key := range slices.Sorted(maps.Keys(entry.Data)) {
		attrs = append(attrs, slog.Any(key, entry.Data[key]))
	}
	h.log.LogAttrs(ctx, level, entry.Message, attrs...)
	return nil
}

// harmless finds entries that containerd logs at too high a level, by their message and a
// part of their error.
func harmless(entry *logrus.Entry) bool {
	if entry.Message == "ttrpc: received message on inactive stream" {
		return true // a shim answers a cancelled call, as when it is stopped
	}
	err, ok := entry.Data[logrus.ErrorKey].(error)
	part, known := map[string]string{
		"failed check for fsverity support": "",                      // optional
		"copy shim log":                     "file already closed",   // a shim has ended
		"copy shim log after reload":        "file already closed",   // likewise
		"failed to delete task":             "container not created", // a start failed, which is reported
	}[entry.Message]
	return ok && known && strings.Contains(err.Error(), part)
}

func slogLevel(level logrus.Level) slog.Level {
	switch level {
	case logrus.TraceLevel, logrus.DebugLevel:
		return slog.LevelDebug
	case logrus.InfoLevel:
		return slog.LevelInfo
	case logrus.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}
