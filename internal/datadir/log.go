package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// LogName is the log of a process in the background, and OlderLogName what the process wrote before that.
const (
	LogName      = "cloudless.log"
	OlderLogName = "cloudless.log.1"
	// maxLogBytes is roughly how large the log may grow.
	maxLogBytes = 32 << 20
	logPeriod   = time.Minute
)

// BoundLog bounds the log of a process in the background until stop is called. It does nothing if out is not that
// log, but a terminal or systemd.
func BoundLog(dataDir string, out *os.File, logger *slog.Logger) (stop func()) {
	done := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		ticker := time.NewTicker(logPeriod)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				if err := rotateLog(dataDir, out, maxLogBytes); err != nil {
					logger.Error("rotate the log", "error", err)
				}
			}
		}
	})
	return func() {
		close(done)
		working.Wait()
	}
}

// rotateLog copies a log that is too large and truncates it. The file stays the same, because this process has it open
// and its children may, which append to it.
func rotateLog(dataDir string, out *os.File, most int64) error {
	path := filepath.Join(dataDir, LogName)
	here, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if open, err := out.Stat(); err != nil || !os.SameFile(here, open) || here.Size() <= most {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := atomicfile.Replace(filepath.Join(dataDir, OlderLogName), data); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	return os.Truncate(path, 0)
}
