package chunks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// The index has no log. It writes its changes to disk in the order in which they were made, so that after a crash it is
// as it was at some earlier time. The states of the packs are in it and say which time that was.
//
// Keys begin with a letter; numbers in keys are big-endian.
const (
	chunkKey   = 'c' // hash: entry
	damagedKey = 'd' // hash: nothing; the chunk was found damaged
	packKey    = 'p' // pack: packState
	deadKey    = 'x' // pack, offset: size of a record that is to be erased
	metaKey    = 'm' // name: number
	// While packs are replayed, what they say about chunks that may be in packs that come later:
	stampKey     = 's' // hash: sequence number, epoch
	tombstoneKey = 't' // hash: sequence number
)

// Names of numbers.
const (
	nextPackMeta = "next-pack"
	scrubbedMeta = "scrubbed"
	damagedMeta  = "damaged"
)

const (
	memTable      = 8 << 20
	indexMaxFiles = 500
)

// index is a database that can be replaced while it is used.
type index struct {
	dir     string
	cache   int64
	room    *room
	logger  *slog.Logger
	damaged func(error) // is called when the index cannot be used any more

	// mu is held for reading during each use of the database, and for writing while it is replaced.
	mu sync.RWMutex
	db *pebble.DB
	fs *patientFS
}

// location is where the record of a chunk is.
type location struct {
	pack   uint32
	size   uint32 // of the data
	offset int64
}

// entry is what the index knows of a chunk.
type entry struct {
	location
	// seq is of the newest record about the chunk: the one with its data or a stamp.
	seq, epoch uint64
}

const entrySize = 32

func (e entry) encode() []byte {
	var b [entrySize]byte
	binary.LittleEndian.PutUint32(b[0:], e.pack)
	binary.LittleEndian.PutUint32(b[4:], e.size)
	binary.LittleEndian.PutUint64(b[8:], uint64(e.offset))
	binary.LittleEndian.PutUint64(b[16:], e.seq)
	binary.LittleEndian.PutUint64(b[24:], e.epoch)
	return b[:]
}

// errIndexValue means that the index has something that was not written there.
var errIndexValue = errors.New("the index of chunks is damaged")

func parseEntry(b []byte) (entry, error) {
	if len(b) != entrySize {
		return entry{}, errIndexValue
	}
	e := entry{
		location: location{
			pack:   binary.LittleEndian.Uint32(b[0:]),
			size:   binary.LittleEndian.Uint32(b[4:]),
			offset: int64(binary.LittleEndian.Uint64(b[8:])),
		},
		seq:   binary.LittleEndian.Uint64(b[16:]),
		epoch: binary.LittleEndian.Uint64(b[24:]),
	}
	if e.size > MaxSize || e.offset < packStart {
		return entry{}, errIndexValue
	}
	return e, nil
}

const packStateSize = 48

func (s packState) encode() []byte {
	var b [packStateSize]byte
	copy(b[0:], s.marker[:])
	binary.LittleEndian.PutUint64(b[8:], uint64(s.end))
	binary.LittleEndian.PutUint64(b[16:], uint64(s.live))
	binary.LittleEndian.PutUint64(b[24:], uint64(s.chunks))
	binary.LittleEndian.PutUint64(b[32:], s.seq)
	if s.doomed {
		b[40] = 1
	}
	return b[:]
}

func parsePackState(b []byte) (packState, error) {
	if len(b) != packStateSize {
		return packState{}, errIndexValue
	}
	return packState{
		marker: marker(b[:8]),
		end:    int64(binary.LittleEndian.Uint64(b[8:])),
		live:   int64(binary.LittleEndian.Uint64(b[16:])),
		chunks: int64(binary.LittleEndian.Uint64(b[24:])),
		seq:    binary.LittleEndian.Uint64(b[32:]),
		doomed: b[40] == 1,
	}, nil
}

func hashKey(letter byte, hash Hash) []byte {
	return append(append(make([]byte, 0, 1+len(hash)), letter), hash[:]...)
}

func packStateKey(id uint32) []byte {
	return binary.BigEndian.AppendUint32([]byte{packKey}, id)
}

func deadRecordKey(id uint32, offset int64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32([]byte{deadKey}, id), uint64(offset))
}

func metaNameKey(name string) []byte { return append([]byte{metaKey}, name...) }

func number(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

// open opens or creates the database. With wipe, an existing one is removed first.
func (ix *index) open(wipe bool) (err error) {
	// A database with wrong bytes is usually reported, but nothing promises that it is.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errIndexValue, r)
		}
	}()
	if wipe {
		if err := os.RemoveAll(ix.dir); err != nil {
			return err
		}
	}
	ix.fs = newPatientFS(ix.room)
	if ix.db, err = pebble.Open(ix.dir, ix.options()); err == nil {
		ix.fs.patient.Store(true)
	}
	return err
}

func (ix *index) options() *pebble.Options {
	generation := &indexEvents{logger: ix.logger, damaged: ix.damaged}
	o := &pebble.Options{
		DisableWAL:                  true,
		FS:                          ix.fs,
		CacheSize:                   ix.cache,
		MemTableSize:                memTable,
		MemTableStopWritesThreshold: 4,
		MaxOpenFiles:                indexMaxFiles,
		FormatMajorVersion:          pebble.FormatNewest,
		Logger:                      generation,
		EventListener: &pebble.EventListener{
			BackgroundError: generation.backgroundError,
			DataCorruption:  func(info pebble.DataCorruptionInfo) { generation.broken(info.Details) },
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		// Digests cannot be compressed.
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
	}
	return o
}

// indexEvents is what one opened database says.
type indexEvents struct {
	logger  *slog.Logger
	damaged func(error)
	once    atomic.Bool
}

func (*indexEvents) Infof(string, ...any) {}

func (g *indexEvents) Errorf(format string, args ...any) {
	g.logger.Warn("the index of chunks: " + fmt.Sprintf(format, args...))
}

// Fatalf is called when the database cannot continue. It can be replaced, so the process continues.
func (g *indexEvents) Fatalf(format string, args ...any) { g.broken(fmt.Errorf(format, args...)) }

func (g *indexEvents) backgroundError(err error) {
	if pebble.IsCorruptionError(err) {
		g.broken(err)
	}
}

func (g *indexEvents) broken(err error) {
	if g.once.CompareAndSwap(false, true) {
		g.damaged(err)
	}
}

// close writes what is in memory, and closes the database.
func (ix *index) close(flush bool) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errors.Join(err, fmt.Errorf("close the index of chunks: %v", r))
		}
	}()
	if ix.db == nil {
		return nil
	}
	if flush {
		err = ix.flushIfRoom()
	}
	ix.fs.patient.Store(false)
	err = errors.Join(err, ix.db.Close())
	ix.db = nil
	return err
}

// flushIfRoom writes what is in memory unless it would have to wait for room on the disk: the packs have everything.
func (ix *index) flushIfRoom() error {
	done, err := ix.db.AsyncFlush()
	if err != nil {
		return err
	}
	tick := time.NewTicker(roomPoll)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-tick.C:
			if ix.room.exhausted() {
				return nil
			}
		}
	}
}

// errNoIndex is returned while the index is being replaced and after that has failed.
var errNoIndex = errors.New("the index of chunks cannot be used now; the log says why")

// find returns the entry of a chunk.
func (ix *index) find(hash Hash) (entry, bool, error) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if ix.db == nil {
		return entry{}, false, errNoIndex
	}
	return ix.findIn(ix.db, hash)
}

func (ix *index) findIn(r pebble.Reader, hash Hash) (entry, bool, error) {
	var key [1 + len(hash)]byte
	key[0] = chunkKey
	copy(key[1:], hash[:])
	value, done, err := r.Get(key[:])
	if errors.Is(err, pebble.ErrNotFound) {
		return entry{}, false, nil
	}
	if err == nil {
		var e entry
		e, err = parseEntry(value)
		if err = errors.Join(err, done.Close()); err == nil {
			return e, true, nil
		}
	}
	ix.damaged(err)
	return entry{}, false, fmt.Errorf("look up chunk %s: %w", hash, err)
}

// has is whether there is a key.
func (ix *index) has(key []byte) (bool, error) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if ix.db == nil {
		return false, errNoIndex
	}
	return ix.hasIn(ix.db, key)
}

func (ix *index) hasIn(r pebble.Reader, key []byte) (bool, error) {
	_, done, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		ix.damaged(err)
		return false, fmt.Errorf("read the index of chunks: %w", err)
	}
	return true, done.Close()
}

// each calls f for every key with a letter that follows after, until f returns false. f must not use the index.
func (ix *index) each(letter byte, after []byte, f func(key, value []byte) (bool, error)) error {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if ix.db == nil {
		return errNoIndex
	}
	return ix.eachIn(letter, after, f)
}

// iterate is each or, for callers that have the index for themselves, eachIn.
type iterate func(letter byte, after []byte, f func(key, value []byte) (bool, error)) error

func (ix *index) eachIn(letter byte, after []byte, f func(key, value []byte) (bool, error)) error {
	lower := append([]byte{letter}, after...)
	if len(after) > 0 {
		lower = append(lower, 0)
	}
	it, err := ix.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: []byte{letter + 1}})
	if err != nil {
		ix.damaged(err)
		return fmt.Errorf("read the index of chunks: %w", err)
	}
	var visitErr error
	for more := it.First(); more && visitErr == nil; {
		var goOn bool
		if goOn, visitErr = f(it.Key()[1:], it.Value()); !goOn {
			break
		}
		more = it.Next()
	}
	err = it.Error()
	if err = errors.Join(err, it.Close()); err != nil {
		ix.damaged(err)
		return fmt.Errorf("read the index of chunks: %w", err)
	}
	return visitErr
}

// meta returns a number, 0 if there is none.
func (ix *index) meta(name string) (uint64, error) {
	value, done, err := ix.db.Get(metaNameKey(name))
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer done.Close()
	if len(value) != 8 {
		return 0, errIndexValue
	}
	return binary.LittleEndian.Uint64(value), nil
}

// flush makes all changes durable.
func (ix *index) flush(ctx context.Context) error {
	done, err := ix.beginFlush()
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginFlush makes all changes durable soon.
func (ix *index) beginFlush() (done <-chan struct{}, err error) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if ix.db == nil {
		return nil, errNoIndex
	}
	return ix.db.AsyncFlush()
}
