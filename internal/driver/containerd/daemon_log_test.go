package containerd

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

// What containerd logs comes out at the same level and with its fields.
func TestLogsAreRouted(t *testing.T) {
	var out bytes.Buffer
	hook := &logHook{log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelInfo}))}
	logger := logrus.New()
	logger.SetOutput(&bytes.Buffer{})
	logger.SetLevel(logrus.TraceLevel)
	logger.AddHook(hook)

	logger.WithField("id", "x").WithError(errors.New("broken")).Error("bad")
	logger.Warn("so so")
	logger.Info("fine")
	logger.Debug("hidden")
	logger.WithError(errors.New("read pipe: file already closed")).Error("copy shim log")
	logger.WithError(errors.New("disk on fire")).Error("copy shim log")
	logger.WithField("stream", 13).Error("ttrpc: received message on inactive stream")
	hook.muted.Store(true)
	logger.Error("muted")

	got := out.String()
	for _, want := range []string{
		`level=ERROR msg=bad error=broken id=x`, `level=WARN msg="so so"`, `level=INFO msg=fine`, `disk on fire`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	for _, unwanted := range []string{"hidden", "already closed", "inactive stream", "muted"} {
		if strings.Contains(got, unwanted) {
			t.Errorf("%q is in:\n%s", unwanted, got)
		}
	}
}
