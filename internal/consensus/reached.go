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

// A log that was cut off, taken away or replaced by an older one looks to raft like that of a server that has always
// been so far behind, which could then vote away what it had helped to agree on. So how far a server has come is also
// written down beside the log, and a log that ends before that is refused.

// reachedEvery is how often it is written down. Who loses files loses more than what was agreed on in that time.
const reachedEvery = time.Second

// reached is the file with the index of an entry that was agreed on and on this server's disk. The zero value is of a
// server that does not keep it.
type reached struct {
	path string

	mu   sync.Mutex
	last uint64 // what the file says
}

// read returns 0 if nothing was ever reached.
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

// note writes an index down if it is a higher one.
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

// refuseLoss makes sure that the log, or the newest snapshot, goes as far as this server had come.
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

// noteReached writes down how far this server is, until it stops.
func (c *Consensus) noteReached() {
	ticker := time.NewTicker(reachedEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			// It is tried again, and a full disk is told of by others.
			if err := c.reached.note(c.raft.AppliedIndex()); err != nil {
				c.logger.Debug("how far this server has come is not written down", "error", err)
			}
		case <-c.done:
			return
		}
	}
}
