package chunks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stats returns the state of the store and its disk.
func (s *Store) Stats() Stats {
	if err := s.enter(); err != nil {
		return Stats{Class: s.class, Problem: err.Error()}
	}
	defer s.leave()
	stats := Stats{
		Used:    s.used.Load(),
		Chunks:  s.chunks.Load(),
		Class:   s.class,
		Damaged: s.damaged.Load(),
	}
	if at := s.scrubbed.Load(); at > 0 {
		stats.Scrubbed = time.Unix(at, 0)
	}
	if err := s.room.check(MaxSize); err != nil {
		stats.Problem = err.Error()
	} else if problem := s.problem.Load(); problem != nil {
		stats.Problem = *problem
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(s.options.Dir, &fs); err != nil {
		stats.Problem = fmt.Sprintf("the room in %s is not known: %v", s.options.Dir, err)
		return stats
	}
	stats.Capacity = int64(fs.Blocks) * fs.Bsize
	stats.Free = max(int64(fs.Bavail)*fs.Bsize-s.options.Reserve-headroom, 0)
	return stats
}

// writeError says why records could not be written, and remembers it until something is written again.
func (s *Store) writeError(err error) error {
	if isFull(err) {
		s.room.forget()
		return fmt.Errorf("%w (%w)", s.room.full(), err)
	}
	err = fmt.Errorf("write chunks to %s: %w", s.options.Dir, err)
	problem := err.Error()
	if s.problem.Swap(&problem) == nil {
		s.logger.Error("chunks cannot be written", "dir", s.options.Dir, "error", err)
	}
	return err
}

// wrote forgets why nothing could be written.
func (s *Store) wrote() {
	if s.problem.Load() != nil {
		s.problem.Store(nil)
		s.logger.Info("chunks can be written again", "dir", s.options.Dir)
	}
}

// diskClass is the kind of disk that a folder is on: "ssd", "hdd" or "unknown".
func diskClass(dir string) string {
	var stat unix.Stat_t
	if err := unix.Stat(dir, &stat); err != nil {
		return "unknown"
	}
	device := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
	path, err := filepath.EvalSymlinks(device)
	if err != nil {
		return "unknown"
	}
	// A partition is below its disk.
	for _, at := range []string{path, filepath.Dir(path)} {
		text, err := os.ReadFile(filepath.Join(at, "queue", "rotational"))
		if err != nil {
			continue
		}
		if strings.TrimSpace(string(text)) == "1" {
			return "hdd"
		}
		return "ssd"
	}
	return "unknown"
}
