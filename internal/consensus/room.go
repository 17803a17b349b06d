package consensus

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

const (
	// reserve is what must be free on disk beside a proposal: room for the next segment of the log, for proposals in
	// flight, and for metadata. A log that has met a full disk cannot be written until it is reopened, so that must
	// never happen.
	reserve = 4 * segmentSize
	// roomHolds is how long a check of the disk is valid. Within it far less than the reserve can be written.
	roomHolds = 50 * time.Millisecond
)

// FullError refuses a change for which the disk has no room. Nothing has happened.
type FullError struct {
	Dir  string
	Free uint64
	// Reserve is how much must stay free.
	Reserve uint64
}

func (e *FullError) Error() string {
	return fmt.Sprintf("there is no space left on the disk for the state of the cluster: %d MiB are free for %s, and %d MiB are kept in reserve; make room there, nothing was changed",
		e.Free>>20, e.Dir, e.Reserve>>20)
}

// Is makes every FullError match [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }

// room knows how much the disk of a folder can still take.
type room struct {
	dir     string
	reserve uint64
	opened  time.Time
	looked  atomic.Int64 // when, since opened
	free    atomic.Uint64
}

func newRoom(dir string, reserve uint64) *room {
	r := &room{dir: dir, reserve: reserve, opened: time.Now()}
	r.looked.Store(int64(-roomHolds))
	return r
}

// check refuses what might not fit. If the disk cannot be checked, it is left to refuse by itself.
func (r *room) check(size int) error {
	if now := int64(time.Since(r.opened)); now-r.looked.Load() >= int64(roomHolds) {
		var s unix.Statfs_t
		if err := unix.Statfs(r.dir, &s); err != nil {
			return nil
		}
		r.free.Store(s.Bavail * uint64(s.Bsize))
		r.looked.Store(now)
	}
	if free := r.free.Load(); free < r.reserve+uint64(size) {
		return &FullError{Dir: r.dir, Free: free, Reserve: r.reserve}
	}
	return nil
}

// watchedLog is the log as raft writes it. Raft would keep electing itself forever with an unwritable log; the server
// stops instead, because only reopening the log can repair it.
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

// DeleteRange on a full disk leaves a file that blocks the next attempt, too.
func (l watchedLog) DeleteRange(first, last uint64) error {
	err := l.observedLog.DeleteRange(first, last)
	if err != nil {
		l.failed(err)
	}
	return err
}

// logFailed is called by raft's own goroutine, for which a shutdown waits.
func (g *Group) logFailed(err error) {
	g.logger.Error("the log cannot be written; this server stops", "error", err)
	go g.shutdown(fmt.Errorf("the log of this server cannot be written: %w; make room if the disk is full, and start it again", err))
}
