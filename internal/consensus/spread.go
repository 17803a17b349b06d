package consensus

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"golang.org/x/sys/unix"
)

const (
	// spreadEvery is after how many bytes a snapshot is synced to disk.
	spreadEvery = 4 << 20
	// longestBreak bounds the break after a piece of a snapshot. A break is as long as its piece took: half of a core
	// is enough for background work.
	longestBreak = 5 * time.Millisecond
)

// snapshotWriter writes a snapshot bit by bit. Otherwise hundreds of megabytes would go to disk at once at the end, and log
// writes would wait for all of them.
type snapshotWriter struct {
	to io.Writer
	// file is the one that raft writes to. It is nil if it cannot be found, which only slows others down.
	file *os.File
	// pause waits while more urgent work is running. It may be nil.
	pause func(context.Context) bool
	fresh int       // bytes since the last sync
	began time.Time // when the current piece began
}

// newSnapshotWriter expects the snapshot in a folder of [raft.FileSnapshotStore].
func newSnapshotWriter(sink raft.SnapshotSink, dir string, pause func(context.Context) bool) *snapshotWriter {
	t := &snapshotWriter{to: sink, pause: pause, began: time.Now()}
	if file, err := os.OpenFile(filepath.Join(dir, sink.ID()+".tmp", "state.bin"), os.O_WRONLY, 0); err == nil {
		t.file = file
	}
	return t
}

func (t *snapshotWriter) Write(p []byte) (int, error) {
	time.Sleep(min(time.Since(t.began), longestBreak))
	defer func() { t.began = time.Now() }()
	if t.pause != nil {
		t.pause(context.Background()) // raft cannot cancel a snapshot
	}
	n, err := t.to.Write(p)
	if t.fresh += n; t.fresh >= spreadEvery && t.file != nil && err == nil {
		t.fresh = 0
		err = t.spread()
	}
	return n, err
}

// spread waits until the disk has what was written so far. A file system without support for that may write everything
// at the end.
func (t *snapshotWriter) spread() error {
	const whole = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := unix.SyncFileRange(int(t.file.Fd()), 0, 0, whole)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) {
		return nil
	}
	return err
}

func (t *snapshotWriter) Close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

// shortenPause is the time between two steps of deleting the beginning of the log. The log cannot be written while one
// of its files is removed, and after a snapshot there may be many.
const shortenPause = 2 * time.Millisecond

// steppedLog deletes its beginning file by file, so a crash may leave part of it. It deletes its end at once.
type steppedLog struct {
	*wal.WAL
	dir string
}

// DeleteRange implements raft.LogStore.
func (l steppedLog) DeleteRange(first, last uint64) error {
	oldest, err := l.FirstIndex()
	if err != nil {
		return err
	}
	segments, _ := segmentsOf(l.dir) // without them it takes one step
	for _, s := range segments {
		if first <= oldest && oldest < s.first && s.first <= last {
			if err := l.WAL.DeleteRange(first, s.first-1); err != nil {
				return err
			}
			time.Sleep(shortenPause)
		}
	}
	return l.WAL.DeleteRange(first, last)
}
