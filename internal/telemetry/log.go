package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
)

// LogFormat is the format of log lines.
type LogFormat string

// The formats of log lines.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// ParseLogFormat parses the value of a flag.
func ParseLogFormat(s string) (LogFormat, error) {
	switch f := LogFormat(s); f {
	case LogText, LogJSON:
		return f, nil
	}
	return "", fmt.Errorf("log format %q is not known: use text or json", s)
}

// NewLogger writes lines from a level on. Lines of a call have its request id, and its
// trace if it is traced.
func NewLogger(w io.Writer, level slog.Level, format LogFormat) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == LogJSON {
		return slog.New(callHandler{slog.NewJSONHandler(w, options)})
	}
	return slog.New(callHandler{slog.NewTextHandler(w, options)})
}

// callHandler adds the request id and trace to a line.
type callHandler struct{ slog.Handler }

func (h callHandler) Handle(ctx context.Context, record slog.Record) error {
	if id := RequestID(ctx); id != "" {
		record.AddAttrs(slog.String("request", id))
	}
	if trace := traceID(ctx); trace != "" {
		record.AddAttrs(slog.String("trace", trace))
	}
	return h.Handler.Handle(ctx, record)
}

func (h callHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return callHandler{h.Handler.WithAttrs(attrs)}
}

func (h callHandler) WithGroup(name string) slog.Handler {
	return callHandler{h.Handler.WithGroup(name)}
}
