package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestEndingShimIsQuiet(t *testing.T) {
	var out strings.Builder
	logger := &logrus.Logger{Out: &out, Formatter: quiet{&logrus.TextFormatter{}}, Level: logrus.InfoLevel, Hooks: logrus.LevelHooks{}}
	logger.WithError(errors.New("bad file descriptor")).Error("cgroups: epoll wait")
	if out.Len() > 0 {
		t.Errorf("it says %q", out.String())
	}
	if logger.Error("disk on fire"); !strings.Contains(out.String(), "disk on fire") {
		t.Errorf("it says %q", out.String())
	}
}
