package consensus

import (
	"context"
	"io"
	"log"
	"log/slog"
	"slices"

	"github.com/hashicorp/go-hclog"
)

// hcLogger passes the logs of raft and its log store to slog, one level lower: they are for people who debug raft, and
// warn of every election. This package itself logs what operators must know.
type hcLogger struct {
	to   *slog.Logger
	name string
	args []any
}

var _ hclog.Logger = (*hcLogger)(nil)

func newHCLogger(to *slog.Logger) *hcLogger {
	return &hcLogger{to: to.With("component", "raft"), name: "raft"}
}

func quieter(level hclog.Level) slog.Level {
	switch level {
	case hclog.Error:
		return slog.LevelError
	case hclog.Warn:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

func (l *hcLogger) enabled(level hclog.Level) bool {
	return l.to.Enabled(context.Background(), quieter(level))
}

// noisyMessages are messages that raft logs many times a second about an unreachable server, and its autopilot about a
// server that has just stopped leading. The loop that watches the servers reports that once.
var noisyMessages = []string{
	"failed to heartbeat to", "failed to appendEntries to", "failed to pipeline appendEntries to", "failed to make requestVote RPC",
	"failed to accept connection", "failed to decode incoming command", "failed to contact", "appendEntries rejected, sending older logs",
	"failed to get previous log", "failed to flush response", "Error when computing next state",
}

func (l *hcLogger) Log(level hclog.Level, msg string, args ...any) {
	if level > hclog.Debug && slices.Contains(noisyMessages, msg) {
		level = hclog.Debug
	}
	if l.enabled(level) {
		l.to.Log(context.Background(), quieter(level), msg, args...)
	}
}

func (l *hcLogger) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }
func (l *hcLogger) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }
func (l *hcLogger) Info(msg string, args ...any)  { l.Log(hclog.Info, msg, args...) }
func (l *hcLogger) Warn(msg string, args ...any)  { l.Log(hclog.Warn, msg, args...) }
func (l *hcLogger) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l *hcLogger) IsTrace() bool { return l.enabled(hclog.Trace) }
func (l *hcLogger) IsDebug() bool { return l.enabled(hclog.Debug) }
func (l *hcLogger) IsInfo() bool  { return l.enabled(hclog.Info) }
func (l *hcLogger) IsWarn() bool  { return l.enabled(hclog.Warn) }
func (l *hcLogger) IsError() bool { return l.enabled(hclog.Error) }

func (l *hcLogger) ImpliedArgs() []any { return l.args }

func (l *hcLogger) With(args ...any) hclog.Logger {
	return &hcLogger{to: l.to.With(args...), name: l.name, args: append(l.args[:len(l.args):len(l.args)], args...)}
}

func (l *hcLogger) Name() string { return l.name }

func (l *hcLogger) Named(name string) hclog.Logger { return l.ResetNamed(l.name + "." + name) }

func (l *hcLogger) ResetNamed(name string) hclog.Logger {
	return &hcLogger{to: l.to, name: name, args: l.args}
}

// SetLevel does nothing: the level is that of the slog handler.
func (l *hcLogger) SetLevel(hclog.Level) {}

func (l *hcLogger) GetLevel() hclog.Level {
	for _, level := range []hclog.Level{hclog.Trace, hclog.Warn, hclog.Error} {
		if l.enabled(level) {
			return level
		}
	}
	return hclog.Off
}

func (l *hcLogger) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(l.to.Handler(), slog.LevelDebug)
}

func (l *hcLogger) StandardWriter(o *hclog.StandardLoggerOptions) io.Writer {
	return l.StandardLogger(o).Writer()
}
