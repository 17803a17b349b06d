package consensus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// To raft, a server whose log was truncated, removed or replaced by an older one looks like one that always lagged, and
// it could vote away what it had helped to commit. So each server also records, outside the log, how far it has come,
// and a log that ends before that is refused.

// reachedEvery is how often it is recorded. A loss of files usually costs more than a second of entries.
const reachedEvery = time.Second

// reached is the file with the index of an entry that is committed and on this server's disk. The zero value records
// nothing.
type reached struct {
	path string

	mu   sync.Mutex
	last uint64 // what the file says
}

// read returns 0 if nothing was recorded.
func (r *reached) read() (uint64, error) {
	if r.path == "" {
		return 0, nil
	}
	text, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read how far this server had come: %w", err)
	}
	index, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s, which says how far this server had come, is damaged: %s", r.path, wayBack)
	}
	return index, nil
}

// note records an index if it is higher.
func (r *reached) note(index uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path == "" || index <= r.last {
		return nil
	}
	return r.write(index)
}

func (r *reached) write(index uint64) error {
	if err := atomicfile.Replace(r.path, fmt.Appendln(nil, index)); err != nil {
		return fmt.Errorf("write down how far this server has come: %w", err)
	}
	r.last = index
	return nil
}

// refuseLoss checks that the log, or the newest snapshot, goes as far as recorded.
func (r *reached) refuseLoss(d *disk) error {
	index, err := r.read()
	if err != nil {
		return err
	}
	_, last, err := d.end()
	if err != nil {
		return fmt.Errorf("find the end of the log: %w", err)
	}
	if last < index {
		return fmt.Errorf("the log ends with entry %d, but this server had agreed to %d entries: files were taken away, or older ones put back; %s", last, index, wayBack)
	}
	r.last = index
	return nil
}

// noteReached records how far this server is, until it stops.
func (g *Group) noteReached() {
	ticker := time.NewTicker(reachedEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			// It is retried, and a full disk is reported elsewhere.
			if err := g.reached.note(g.raft.AppliedIndex()); err != nil {
				g.logger.Debug("how far this server has come is not written down", "error", err)
			}
		case <-g.done:
			return
		}
	}
}
