package consensus

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

const (
	// reserve is what must be free on the disk beside a proposal: room for the next segment of the log, for what is
	// on its way, and for the table of contents. A log that has met a full disk cannot be written until it is
	// opened again, so it must never meet one.
	reserve = 4 * segmentSize
	// roomHolds is how long a look at the disk counts. Within it far less than the reserve can be written.
	roomHolds = 50 * time.Millisecond
)

// FullError refuses a change for which the disk has no room. Nothing has happened.
type FullError struct {
	Dir  string
	Free uint64
}

func (e *FullError) Error() string {
	return fmt.Sprintf("there is no space left on the disk for the state of the cluster: %d MiB are free for %s, and %d MiB are kept in reserve; make room there, nothing was changed",
		e.Free>>20, e.Dir, reserve>>20)
}

// room knows how much the disk of a folder can still take.
type room struct {
	dir    string
	opened time.Time
	looked atomic.Int64 // when, since opened
	free   atomic.Uint64
}

func newRoom(dir string) *room {
	r := &room{dir: dir, opened: time.Now()}
	r.looked.Store(int64(-roomHolds))
	return r
}

// check refuses what might not fit. A disk that cannot be asked is left to refuse by itself.
func (r *room) check(size int) error {
	if now := int64(time.Since(r.opened)); now-r.looked.Load() >= int64(roomHolds) {
		var s unix.Statfs_t
		if err := unix.Statfs(r.dir, &s); err != nil {
			return nil
		}
		r.free.Store(s.Bavail * uint64(s.Bsize))
		r.looked.Store(now)
	}
	if free := r.free.Load(); free < reserve+uint64(size) {
		return &FullError{Dir: r.dir, Free: free}
	}
	return nil
}

// watchedLog is the log as raft writes it. Raft would go on with a log that cannot be written, electing itself for
// ever; the server stops instead, because only opening the log again can mend that.
type watchedLog struct {
	observedLog
	failed func(error)
}

func (l watchedLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

func (l watchedLog) StoreLogs(entries []*raft.Log) error {
	err := l.observedLog.StoreLogs(entries)
	if err != nil {
		l.failed(err)
	}
	return err
}

// DeleteRange leaves a file in the way of the next attempt, too, when there is no room.
func (l watchedLog) DeleteRange(first, last uint64) error {
	err := l.observedLog.DeleteRange(first, last)
	if err != nil {
		l.failed(err)
	}
	return err
}

// logFailed is called by raft's own goroutine, which a shutdown waits for.
func (c *Consensus) logFailed(err error) {
	c.logger.Error("the log cannot be written; this server stops", "error", err)
	go c.shutdown(fmt.Errorf("the log of this server cannot be written: %w; make room if the disk is full, and start it again", err))
}
