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
	// spreadEvery is after how many bytes of a snapshot the disk has to have them.
	spreadEvery = 4 << 20
	// longestBreak bounds the break after a piece of a snapshot, which is as long as the piece took: half of a core is
	// enough for what has time.
	longestBreak = 5 * time.Millisecond
)

// trickle is where a snapshot is written to, bit by bit. Left to the end, hundreds of megabytes would go to the disk at
// once, and whoever writes to the log would wait for all of them.
type trickle struct {
	to io.Writer
	// file is the one that raft writes to; nil if it cannot be found, which costs others time and nothing else.
	file *os.File
	// pause waits while there is something better to do; nil never does.
	pause func(context.Context) bool
	fresh int       // bytes since the disk was seen to have all
	began time.Time // to make the piece that is written next
}

// newTrickle expects the snapshot in a folder of [raft.FileSnapshotStore].
func newTrickle(sink raft.SnapshotSink, dir string, pause func(context.Context) bool) *trickle {
	t := &trickle{to: sink, pause: pause, began: time.Now()}
	if file, err := os.OpenFile(filepath.Join(dir, sink.ID()+".tmp", "state.bin"), os.O_WRONLY, 0); err == nil {
		t.file = file
	}
	return t
}

func (t *trickle) Write(p []byte) (int, error) {
	time.Sleep(min(time.Since(t.began), longestBreak))
	defer func() { t.began = time.Now() }()
	if t.pause != nil {
		t.pause(context.Background()) // raft has no word for a snapshot that is not needed any more
	}
	n, err := t.to.Write(p)
	if t.fresh += n; t.fresh >= spreadEvery && t.file != nil && err == nil {
		t.fresh = 0
		err = t.spread()
	}
	return n, err
}

// spread waits until the disk has what was written so far. Where the file system knows no way to do that, it may take
// all of it at the end.
func (t *trickle) spread() error {
	const whole = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := unix.SyncFileRange(int(t.file.Fd()), 0, 0, whole)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) {
		return nil
	}
	return err
}

func (t *trickle) Close() error {
	if t.file == nil {
		return nil
	}
	return t.file.Close()
}

// shortenPause is the time between two steps in which the beginning of the log is taken away. Nobody can write to the
// log while a file of it is removed, and after a snapshot there may be many.
const shortenPause = 2 * time.Millisecond

// steppedLog gives up its beginning file by file: it may be gone in part. Its end is gone at once.
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
