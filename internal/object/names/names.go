package names

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	defaultCache = 32 << 20
	// maxChange is how large a change in memory gets before it is committed.
	maxChange = 4 << 20
)

// ErrClosed says that the store was closed.
var ErrClosed = errors.New("the names are closed")

// Hash is the BLAKE3 digest of a chunk.
type Hash [hashSize]byte

// Options configures the store.
type Options struct {
	// Dir is created if it does not exist. Only one process at a time may use it.
	Dir    string
	Logger *slog.Logger
	// Cache is how many bytes of the data are kept in memory; 32 MiB if 0.
	Cache int64
	// files is the file system; that of the machine if nil.
	files vfs.FS
}

// Entry is a committed log entry.
type Entry struct {
	Index uint64
	// Data is an encoded objectv1.Entry.
	Data []byte
}

// Names is the store. It is the machine of a group of package consensus. All methods may be called at once.
type Names struct {
	logger  *slog.Logger
	folder  *folder
	applied atomic.Uint64

	// writing is held by whoever changes the store, and guards what follows.
	writing sync.Mutex
	meta    meta
	nodes   map[uint32]bool
	// broken is why nothing can be applied any more.
	broken error

	// mu guards current, which is nil after Close.
	mu      sync.RWMutex
	current *database
}

// Open opens or creates the store.
func Open(options Options) (_ *Names, err error) {
	if options.Dir == "" {
		return nil, errors.New("the names need a folder")
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.Cache == 0 {
		options.Cache = defaultCache
	}
	if options.files == nil {
		options.files = vfs.Default
	}
	f, err := openFolder(options)
	if err != nil {
		return nil, fmt.Errorf("open the names in %s: %w", options.Dir, err)
	}
	db, err := f.openCurrent()
	if err != nil {
		return nil, fmt.Errorf("open the names in %s: %w", options.Dir, errors.Join(err, f.close()))
	}
	n := &Names{logger: options.Logger, folder: f}
	n.use(db)
	return n, nil
}

// use makes a database the current one.
func (n *Names) use(db *database) {
	n.meta, n.nodes, n.broken = db.meta, db.nodes, nil
	n.applied.Store(n.meta.applied)
	n.mu.Lock()
	n.current = db
	n.mu.Unlock()
}

// acquire returns the current database, which stays open until it is released.
func (n *Names) acquire() (*database, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.current == nil {
		return nil, ErrClosed
	}
	n.current.acquire()
	return n.current, nil
}

// Close writes what is in memory and closes all files. Those of open views are closed with them.
func (n *Names) Close() error {
	n.writing.Lock()
	defer n.writing.Unlock()
	n.mu.Lock()
	db := n.current
	n.current = nil
	n.mu.Unlock()
	if db == nil {
		return nil
	}
	err := db.flush()
	if err != nil {
		err = fmt.Errorf("write the names in %s (the log still has what is missing): %w", n.folder.dir, err)
	}
	return errors.Join(err, db.release(), n.folder.close())
}

// Apply applies committed entries, one after the other, and returns the results of each. It skips those that it has
// applied before a restart; their results are nil. An error means that an entry is not understood, or that the disk
// failed: nothing may be applied after it, and only the entries that have results were applied.
func (n *Names) Apply(entries []Entry) ([]*objectv1.Results, error) {
	n.writing.Lock()
	defer n.writing.Unlock()
	db, err := n.acquire()
	if err != nil {
		return nil, err
	}
	defer n.releaseOrLog(db)
	if n.broken != nil {
		return nil, n.broken
	}
	all := make([]*objectv1.Results, 0, len(entries))
	for len(all) < len(entries) && err == nil {
		var results []*objectv1.Results
		results, err = n.applySome(db, entries[len(all):])
		all = append(all, results...)
	}
	n.broken = err
	return all, err
}

// applySome applies entries in one change, until it becomes large.
func (n *Names) applySome(db *database, entries []Entry) ([]*objectv1.Results, error) {
	change := newChange(db.DB, n.meta, n.nodes)
	defer func() { n.warn("close a batch", change.Close()) }()
	var results []*objectv1.Results
	var bad error // an entry that is not understood; those before it are applied
	for _, e := range entries {
		if e.Index <= change.meta.applied {
			results = append(results, nil)
			continue
		}
		if change.Len() > maxChange {
			break
		}
		entry, err := decodeEntry(e.Data)
		if err != nil {
			bad = fmt.Errorf("entry %d of the log of names is not understood: %w", e.Index, err)
			break
		}
		result, err := change.apply(e.Index, entry)
		if err != nil {
			return nil, fmt.Errorf("apply entry %d of the log of names: %w", e.Index, err)
		}
		results = append(results, result)
	}
	if change.meta.applied == n.meta.applied {
		return results, bad
	}
	if err := change.commit(); err != nil {
		return nil, fmt.Errorf("write entries of the log of names: %w", err)
	}
	n.meta = change.meta
	n.applied.Store(n.meta.applied)
	return results, bad
}

// Applied is the index of the newest entry that was applied. After a restart it may be smaller than before: the log
// has those that are missing.
func (n *Names) Applied() uint64 { return n.applied.Load() }

// Flush makes everything durable that was applied before.
func (n *Names) Flush() error {
	db, err := n.acquire()
	if err != nil {
		return err
	}
	defer n.releaseOrLog(db)
	if err := db.flush(); err != nil {
		return fmt.Errorf("write the names in %s: %w", n.folder.dir, err)
	}
	return nil
}

// Checkpoint makes everything durable, and a complete copy in a new folder, by hard links. It returns the index of the
// newest entry in the copy. Entries may be applied meanwhile.
func (n *Names) Checkpoint(dir string) (uint64, error) {
	db, err := n.acquire()
	if err != nil {
		return 0, err
	}
	defer n.releaseOrLog(db)
	if err := db.flush(); err != nil {
		return 0, fmt.Errorf("write the names in %s: %w", n.folder.dir, err)
	}
	if err := db.Checkpoint(dir); err != nil {
		return 0, fmt.Errorf("copy the names to %s: %w", dir, err)
	}
	index, err := n.folder.indexOf(dir)
	if err != nil {
		return 0, fmt.Errorf("read the copy of the names in %s: %w", dir, err)
	}
	return index, nil
}

// Restore replaces everything with a copy that Checkpoint has made, perhaps on another server. The folder is gone
// afterwards. Views that are open stay valid. A crash leaves either everything as it was, or the copy.
func (n *Names) Restore(dir string) error {
	n.writing.Lock()
	defer n.writing.Unlock()
	old, err := n.acquire()
	if err != nil {
		return err
	}
	defer n.releaseOrLog(old)
	db, err := n.folder.replace(dir)
	if err != nil {
		return fmt.Errorf("restore the names from %s: %w", dir, err)
	}
	n.use(db)
	old.discard()
	n.releaseOrLog(old) // for the store itself
	return nil
}

func (n *Names) releaseOrLog(db *database) { n.warn("close the database", db.release()) }

func (n *Names) warn(what string, err error) {
	if err != nil {
		n.logger.Warn("names: "+what, "error", err)
	}
}
