package containerd

import (
	"context"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/sirupsen/logrus"
)

// routeLogs sends what containerd writes to its process-wide logger to log.
// The level stays at info: at debug, every shim would open a further socket.
func routeLogs(log *slog.Logger) {
	std := logrus.StandardLogger()
	std.SetLevel(logrus.InfoLevel)
	std.SetOutput(io.Discard)
	std.SetFormatter(noFormat{})
	std.ReplaceHooks(logrus.LevelHooks{})
	std.AddHook(logHook{log.With("component", "containerd")})
}

// noFormat spares the work of rendering lines that are thrown away.
type noFormat struct{}

func (noFormat) Format(*logrus.Entry) ([]byte, error) { return nil, nil }

type logHook struct{ log *slog.Logger }

func (logHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h logHook) Fire(entry *logrus.Entry) error {
	ctx := entry.Context
	if ctx == nil {
		ctx = context.Background()
	}
	level := slogLevel(entry.Level)
	if !h.log.Enabled(ctx, level) {
		return nil
	}
	attrs := make([]slog.Attr, 0, len(entry.Data))
	for _, key := range slices.Sorted(maps.Keys(entry.Data)) {
		attrs = append(attrs, slog.Any(key, entry.Data[key]))
	}
	h.log.LogAttrs(ctx, level, entry.Message, attrs...)
	return nil
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
