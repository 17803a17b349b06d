package registry

import (
	"context"
	"io"
	"log/slog"
	"reflect"

	"github.com/sirupsen/logrus"
)

// logBridge passes the distribution library's log to a slog.Logger.
//
// The library takes its logger from the context, under a key that only its own packages can
// set, and otherwise uses the process-wide logger, which is not ours to change. So the
// bridge's context recognizes that key by its name.
type logBridge struct{ entry *logrus.Entry }

func newLogBridge(log *slog.Logger) logBridge {
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.SetFormatter(noFormat{})
	l.SetLevel(logrus.DebugLevel)
	l.AddHook(slogHook{log})
	return logBridge{logrus.NewEntry(l)}
}

// context returns a context in which the library finds this logger.
func (b logBridge) context(parent context.Context) context.Context {
	return loggingContext{parent, b.entry}
}

type loggingContext struct {
	context.Context
	entry *logrus.Entry
}

const (
	loggerKeyPackage = "github.com/distribution/distribution/v3/internal/dcontext"
	loggerKeyType    = "loggerKey"
)

func (c loggingContext) Value(key any) any {
	if t := reflect.TypeOf(key); t != nil && t.Name() == loggerKeyType && t.PkgPath() == loggerKeyPackage {
		return c.entry
	}
	return c.Context.Value(key)
}

// logFields are the fields that are useful in the log. The others repeat them, or do not
// belong there: the request's URI contains the signed state of an upload.
var logFields = []struct{ theirs, ours string }{
	{"http.request.method", "method"},
	{"http.request.remoteaddr", "client"},
	{"http.response.status", "status"},
	{"http.response.duration", "duration"},
	{"vars.name", "repository"},
	{"vars.reference", "reference"},
	{"vars.digest", "digest"},
	{"err.code", "code"},
	{"err.message", "error"},
	{"err.detail", "detail"},
	{logrus.ErrorKey, "cause"},
}

type slogHook struct{ log *slog.Logger }

func (slogHook) Levels() []logrus.Level { return logrus.AllLevels }

func (h slogHook) Fire(e *logrus.Entry) error {
	ctx := context.Background()
	level := levelOf(e)
	if !h.log.Enabled(ctx, level) {
		return nil
	}
	attrs := make([]slog.Attr, 0, len(logFields))
	for _, f := range logFields {
		if v, ok := e.Data[f.theirs]; ok {
			attrs = append(attrs, slog.Any(f.ours, v))
		}
	}
	h.log.LogAttrs(ctx, level, e.Message, attrs...)
	return nil
}

// levelOf lowers the library's levels: it logs each request as info, and each question for
// a missing layer as an error.
func levelOf(e *logrus.Entry) slog.Level {
	status, _ := e.Data["http.response.status"].(int)
	switch {
	case e.Level >= logrus.InfoLevel, status >= 400 && status < 500:
		return slog.LevelDebug
	case e.Level == logrus.WarnLevel:
		return slog.LevelWarn
	default:
		return slog.LevelError
	}
}

// noFormat avoids formatting lines that are discarded.
type noFormat struct{}

func (noFormat) Format(*logrus.Entry) ([]byte, error) { return nil, nil }
