package app

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

// ownLog is where a process in the background writes, and olderLog what it has
// written before that.
const (
	ownLog   = "cloudless.log"
	olderLog = "cloudless.log.1"
	// ownLogBytes is how large the log may grow, about.
	ownLogBytes  = 32 << 20
	ownLogPeriod = time.Minute
)

// boundLog keeps the log of a process in the background within bounds, until stop is
// called. Who writes elsewhere, as to a terminal or to systemd, is left alone.
func boundLog(dataDir string, out *os.File, period time.Duration, most int64, logger *slog.Logger) (stop func()) {
	done := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				logError(logger, "put the log aside", putLogAside(dataDir, out, most))
			}
		}
	})
	return func() {
		close(done)
		working.Wait()
	}
}

// putLogAside copies a log that is too large and begins it anew. The file stays
// the same, because this process has it open, and its children may, which write to its
// end wherever that is.
func putLogAside(dataDir string, out *os.File, most int64) error {
	path := filepath.Join(dataDir, ownLog)
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
	if err := atomicfile.Replace(filepath.Join(dataDir, olderLog), data); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	return os.Truncate(path, 0)
}
