package names

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

const (
	// fileFormat is that of Pebble's files. It only changes when every server of a cluster can read the next one, because
	// servers copy their files to each other.
	fileFormat = pebble.FormatTableFormatV6
	memtable   = 16 << 20
	// maxMemtables limits what waits in memory for a slow disk. Applying waits then, too.
	maxMemtables = 3
	openFiles    = 512
)

// folder has one database that is in use, in a folder of its own: "data-1", "data-2" and so on. A marker file names it.
// All others are left over from a restore and removed.
type folder struct {
	fs     vfs.FS
	dir    string
	logger *slog.Logger
	lock   io.Closer
	marker *atomicfs.Marker
	name   string
	cache  *pebble.Cache
	// trouble receives errors of Pebble's work in the background, which it repeats without an end.
	trouble *trouble
}

func openFolder(options Options) (*folder, error) {
	f := &folder{fs: options.files, dir: options.Dir, logger: options.Logger, trouble: new(trouble)}
	if err := f.fs.MkdirAll(f.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if f.lock, err = f.fs.Lock(f.path("lock")); err != nil {
		return nil, fmt.Errorf("another process may be using them: %w", err)
	}
	if f.marker, f.name, err = atomicfs.LocateMarker(f.fs, f.dir, "names"); err != nil {
		return nil, errors.Join(err, f.lock.Close())
	}
	f.cache = pebble.NewCache(options.Cache)
	return f, nil
}

func (f *folder) path(name string) string { return f.fs.PathJoin(f.dir, name) }

func (f *folder) close() error {
	f.cache.Unref()
	return errors.Join(f.marker.Close(), f.lock.Close())
}

// openCurrent opens the database that is in use, and removes all others.
func (f *folder) openCurrent() (*database, error) {
	if err := f.clean(); err != nil {
		return nil, err
	}
	if f.name != "" {
		return f.open(f.name)
	}
	db, err := f.open(f.nextName())
	if err != nil {
		return nil, err
	}
	if err := f.moveTo(db.name); err != nil {
		return nil, errors.Join(err, db.release())
	}
	return db, nil
}

func (f *folder) clean() error {
	names, err := f.fs.List(f.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "data-") && name != f.name {
			if err := f.fs.RemoveAll(f.path(name)); err != nil {
				return err
			}
		}
	}
	return f.marker.RemoveObsolete()
}

func (f *folder) nextName() string {
	number, err := strconv.Atoi(strings.TrimPrefix(f.name, "data-"))
	if err != nil {
		number = 0
	}
	return "data-" + strconv.Itoa(number+1)
}

func (f *folder) moveTo(name string) error {
	if err := f.marker.Move(name); err != nil {
		return err
	}
	f.name = name
	return nil
}

// replace makes a copy the database in use. The old one stays open, and its folder until it is discarded.
func (f *folder) replace(dir string) (*database, error) {
	name := f.nextName()
	if err := f.fs.RemoveAll(f.path(name)); err != nil {
		return nil, err
	}
	if err := f.take(dir, f.path(name)); err != nil {
		return nil, err
	}
	db, err := f.open(name)
	if err != nil {
		return nil, err
	}
	if err := f.moveTo(name); err != nil {
		return nil, errors.Join(err, db.release())
	}
	return db, nil
}

// take moves a folder, or copies it if it is on another file system, and makes that durable.
func (f *folder) take(from, to string) error {
	if _, err := f.fs.Stat(from); err != nil {
		return err
	}
	if err := f.fs.Rename(from, to); err != nil {
		if _, err := vfs.Clone(f.fs, f.fs, from, to, vfs.CloneSync); err != nil {
			return err
		}
		if err := f.fs.RemoveAll(from); err != nil {
			return err
		}
	}
	parent, err := f.fs.OpenDir(f.dir)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

func (f *folder) open(name string) (*database, error) {
	db, err := pebble.Open(f.path(name), f.options(false))
	if err != nil {
		return nil, err
	}
	d := &database{DB: db, folder: f, name: name, users: 1}
	if err := d.load(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return d, nil
}

// indexOf returns the index of the newest entry in a copy.
func (f *folder) indexOf(dir string) (uint64, error) {
	db, err := pebble.Open(dir, f.options(true))
	if err != nil {
		return 0, err
	}
	m, err := readMeta(db)
	return m.applied, errors.Join(err, db.Close())
}

func (f *folder) options(readOnly bool) *pebble.Options {
	options := &pebble.Options{
		FS: f.fs, Cache: f.cache, Logger: pebbleLogger{f.logger}, ReadOnly: readOnly,
		FormatMajorVersion: fileFormat,
		// The log of the group is the write-ahead log. What was not flushed is applied again.
		DisableWAL:   true,
		MemTableSize: memtable, MemTableStopWritesThreshold: maxMemtables,
		MaxOpenFiles: openFiles,
		EventListener: &pebble.EventListener{BackgroundError: func(err error) {
			f.logger.Warn("names: the database cannot write, and tries again", "folder", f.dir, "error", err)
			f.trouble.report(err)
		}},
	}
	// The last level has none: they would be larger than the cache, and Pebble does not ask them.
	for i := range len(options.Levels) - 1 {
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return options
}

// database is a Pebble database. It closes when nothing uses it any more.
type database struct {
	*pebble.DB
	folder *folder
	name   string
	// meta and nodes are as the database had them when it was opened.
	meta  meta
	nodes map[uint32]bool

	mu    sync.Mutex
	users int
	// discarded is whether the files are removed in the end.
	discarded bool
}

func (d *database) load() error {
	var err error
	if d.meta, err = readMeta(d.DB); err != nil {
		return err
	}
	uids, err := loadNodes(d.DB)
	d.nodes = make(map[uint32]bool, len(uids))
	for _, number := range uids {
		d.nodes[number] = true
	}
	return err
}

func (d *database) acquire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users++
}

func (d *database) release() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users--; d.users > 0 {
		return nil
	}
	err := d.Close()
	if d.discarded {
		err = errors.Join(err, d.folder.fs.RemoveAll(d.folder.path(d.name)))
	}
	return err
}

func (d *database) discard() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.discarded = true
}

// flush writes what is in memory to the disk. It returns when the disk fails, although Pebble tries again then.
func (d *database) flush() error {
	trouble, stop := d.folder.trouble.watch()
	defer stop()
	done, err := d.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case err := <-trouble:
		return err
	}
}

// trouble passes errors on to those who wait.
type trouble struct {
	mu       sync.Mutex
	watchers map[chan error]bool
}

func (t *trouble) watch() (<-chan error, func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	watcher := make(chan error, 1)
	if t.watchers == nil {
		t.watchers = map[chan error]bool{}
	}
	t.watchers[watcher] = true
	return watcher, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watchers, watcher)
	}
}

func (t *trouble) report(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for watcher := range t.watchers {
		select {
		case watcher <- err:
		default: // it has one already
		}
	}
}

// pebbleLogger passes on what an administrator should know.
type pebbleLogger struct{ logger *slog.Logger }

func (l pebbleLogger) Infof(string, ...any) {}

func (l pebbleLogger) Errorf(format string, args ...any) {
	l.logger.Warn("names: " + fmt.Sprintf(format, args...))
}

// Fatalf must not return: Pebble calls it when its files are damaged while it runs.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	l.logger.Error("names: " + message)
	panic("names: " + message)
}
