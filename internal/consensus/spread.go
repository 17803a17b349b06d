package consensus

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

const (
	// spreadEvery is after how many bytes of a snapshot the disk has to have them.
	spreadEvery = 4 << 20
	// longestBreak bounds the break after a piece of a snapshot, which is as long as the piece took: half of a core is
	// enough for what has time.
	longestBreak = 5 * time.Millisecond
)

// saving is where a snapshot is written to, bit by bit. Left to the end, hundreds of megabytes would go to the disk at
// once, and whoever writes to the log would wait for all of them.
type saving struct {
	to io.Writer
	// file is the one that raft writes to; nil if it cannot be found, which costs others time and nothing else.
	file *os.File
	// pause waits while there is something better to do; nil never does.
	pause func(context.Context) bool
	fresh int       // bytes since the disk was seen to have all
	began time.Time // to make the piece that is written next
}

// newSaving expects the snapshot in a folder of [raft.FileSnapshotStore].
func newSaving(sink raft.SnapshotSink, dir string, pause func(context.Context) bool) *saving {
	s := &saving{to: sink, pause: pause, began: time.Now()}
	if file, err := os.OpenFile(filepath.Join(dir, sink.ID()+".tmp", "state.bin"), os.O_WRONLY, 0); err == nil {
		s.file = file
	}
	return s
}

func (s *saving) Write(p []byte) (int, error) {
	time.Sleep(min(time.Since(s.began), longestBreak))
	defer func() { s.began = time.Now() }()
	if s.pause != nil {
		s.pause(context.Background()) // raft has no word for a snapshot that is not needed any more
	}
	n, err := s.to.Write(p)
	if s.fresh += n; s.fresh >= spreadEvery && s.file != nil && err == nil {
		s.fresh = 0
		err = s.spread()
	}
	return n, err
}

// spread waits until the disk has what was written so far. Where the file system knows no way to do that, it may take
// all of it at the end.
func (s *saving) spread() error {
	const whole = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	err := unix.SyncFileRange(int(s.file.Fd()), 0, 0, whole)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ESPIPE) {
		return nil
	}
	return err
}

func (s *saving) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// shortenSteps is in how many steps the beginning of the log is taken away at most, and shortenPause the time between
// two of them. Nobody can write to the log while files of it are removed, and after a snapshot there may be many.
const (
	shortenSteps = 64
	shortenPause = 2 * time.Millisecond
)

// DeleteRange takes the beginning of the log away step by step: it may be gone in part. Its end is gone at once.
func (l observedLog) DeleteRange(first, last uint64) error {
	oldest, err := l.FirstIndex()
	if err != nil {
		return err
	}
	newest, err := l.LastIndex()
	if err != nil {
		return err
	}
	if first <= oldest && oldest <= last && last < newest {
		step := (last-oldest)/shortenSteps + 1
		for end := oldest + step - 1; end < last; end += step {
			if err := l.WAL.DeleteRange(first, end); err != nil {
				return err
			}
			time.Sleep(shortenPause)
		}
	}
	return l.WAL.DeleteRange(first, last)
}
