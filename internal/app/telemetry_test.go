package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cloudless/cloudless/internal/must"
)

// A killed process leaves its socket behind, and the next one listens all the same. Other users can never open it.
func TestMetricsSocketIsPrivateAndRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", metricsSocket)
	killed, err := listenPrivately(context.Background(), path)
	must.Succeed(t, err)
	defer func() { _ = killed.(removedOnClose).Listener.Close() }() // leaves the file, as kill -9 does
	next, err := listenPrivately(context.Background(), path)
	must.Succeed(t, err)
	info, err := os.Stat(path)
	must.Succeed(t, err)
	if info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v", info.Mode())
	}
	if got := must.List(t, filepath.Dir(path)); got != metricsSocket {
		t.Errorf("beside the socket lies %s", got)
	}
	must.Succeed(t, next.Close())
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket outlives its listener: %v", err)
	}
}
