package chunks

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

const (
	// headroom is what chunks leave free beside the reserve: for the index, for tombstones, and for chunks that are
	// being written at the same time.
	headroom = 16 << 20
	// ballastSize is given up when others fill the disk. It is enough for some hundred thousand tombstones.
	ballastSize = 16 << 20
	// roomHolds is how long a look at the disk is valid.
	roomHolds = 20 * time.Millisecond
	// roomPoll is how often the index looks whether there is room again.
	roomPoll = 200 * time.Millisecond
)

// room knows how much the file system of a folder can still take.
type room struct {
	dir     string
	reserve int64
	opened  time.Time
	looked  atomic.Int64 // when, since opened
	free    atomic.Int64

	mu      sync.Mutex
	ballast bool // whether there is some to give up
}

func newRoom(dir string, reserve int64) *room {
	r := &room{dir: dir, reserve: reserve, opened: time.Now()}
	r.forget()
	if info, err := os.Stat(r.ballastPath()); err == nil {
		r.ballast = info.Size() >= ballastSize
	}
	return r
}

// left is how many bytes chunks may still use. It is negative if there is less than what they must leave free, and
// false if the disk does not say.
func (r *room) left() (int64, bool) {
	if now := int64(time.Since(r.opened)); now-r.looked.Load() >= int64(roomHolds) {
		var s unix.Statfs_t
		if err := unix.Statfs(r.dir, &s); err != nil {
			return 0, false
		}
		r.free.Store(int64(s.Bavail) * s.Bsize)
		r.looked.Store(now)
	}
	return r.free.Load() - r.reserve - headroom, true
}

// check refuses what might not fit. If the disk does not say, it is left to refuse by itself.
func (r *room) check(size int64) error {
	if left, known := r.left(); known && left < size {
		return r.full()
	}
	return nil
}

func (r *room) full() error {
	return &FullError{Dir: r.dir, Free: r.free.Load(), Reserve: r.reserve + headroom}
}

// exhausted is whether the file system has no room even for the index.
func (r *room) exhausted() bool {
	r.forget()
	_, known := r.left()
	return !known || r.free.Load() < 2*memTable
}

// forget makes the next check look at the disk.
func (r *room) forget() { r.looked.Store(int64(-roomHolds)) }

func (r *room) ballastPath() string { return filepath.Join(r.dir, "ballast") }

// restoreBallast takes room to give up later, if there is enough.
func (r *room) restoreBallast() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ballast {
		return nil
	}
	if left, known := r.left(); !known || left < ballastSize {
		return nil
	}
	f, err := os.OpenFile(r.ballastPath(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, ballastSize)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return f.Close() // the file system cannot promise room
	}
	r.ballast = err == nil
	return errors.Join(err, f.Close())
}

// giveUpBallast returns whether there is more room now.
func (r *room) giveUpBallast() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ballast {
		return false
	}
	r.ballast = false
	return os.Truncate(r.ballastPath(), 0) == nil
}

// isFull is whether an error says that the disk has no room.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// patientFS is the file system for the index. It repeats what fails on a full disk until there is room, because the
// index cannot handle a full disk: it could not be written any more. While it waits, it can be read.
type patientFS struct {
	vfs.FS
	room *room
	// patient is false while the index is opened or closed: that fails on a full disk.
	patient atomic.Bool
}

func newPatientFS(r *room) *patientFS { return &patientFS{FS: vfs.Default, room: r} }

func (fs *patientFS) patiently(do func() error) error {
	for {
		err := do()
		if !isFull(err) {
			return err
		}
		if fs.room.giveUpBallast() {
			continue
		}
		if !fs.patient.Load() {
			return err
		}
		time.Sleep(roomPoll)
	}
}

func (fs *patientFS) Unwrap() vfs.FS { return fs.FS }

func (fs *patientFS) opened(open func() (vfs.File, error)) (vfs.File, error) {
	var file vfs.File
	err := fs.patiently(func() (err error) {
		file, err = open()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &patientFile{File: file, fs: fs}, nil
}

func (fs *patientFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.opened(func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

func (fs *patientFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return fs.opened(func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, c, o...) })
}

func (fs *patientFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return fs.opened(func() (vfs.File, error) { return fs.FS.ReuseForWrite(old, name, c) })
}

func (fs *patientFS) OpenDir(name string) (vfs.File, error) {
	return fs.opened(func() (vfs.File, error) { return fs.FS.OpenDir(name) })
}

func (fs *patientFS) Link(old, name string) error {
	return fs.patiently(func() error { return fs.FS.Link(old, name) })
}

func (fs *patientFS) Rename(old, name string) error {
	return fs.patiently(func() error { return fs.FS.Rename(old, name) })
}

func (fs *patientFS) MkdirAll(dir string, perm os.FileMode) error {
	return fs.patiently(func() error { return fs.FS.MkdirAll(dir, perm) })
}

type patientFile struct {
	vfs.File
	fs *patientFS
}

func (f *patientFile) Write(p []byte) (int, error) {
	written := 0
	err := f.fs.patiently(func() error {
		n, err := f.File.Write(p[written:])
		written += n
		if err == nil && written < len(p) {
			return io.ErrShortWrite
		}
		return err
	})
	return written, err
}

func (f *patientFile) WriteAt(p []byte, offset int64) (n int, err error) {
	err = f.fs.patiently(func() error {
		n, err = f.File.WriteAt(p, offset)
		return err
	})
	return n, err
}

func (f *patientFile) Preallocate(offset, length int64) error {
	return f.fs.patiently(func() error { return f.File.Preallocate(offset, length) })
}

func (f *patientFile) Sync() error { return f.fs.patiently(f.File.Sync) }

func (f *patientFile) SyncData() error { return f.fs.patiently(f.File.SyncData) }

func (f *patientFile) SyncTo(length int64) (full bool, err error) {
	err = f.fs.patiently(func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}
