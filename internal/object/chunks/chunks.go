// Package chunks stores chunks on the disk of a node: pieces of up to 4 MiB, named by the BLAKE3 digest of their bytes.
// A chunk that Put has acknowledged survives kill -9 and a power failure, and Get never returns other bytes than those
// that were put: it says that the chunk is damaged.
//
// Chunks are records in pack files, which are only appended to. A [Store] has several packs open for appending, each
// with one goroutine that writes what is waiting and makes it durable with one fdatasync (lane.go). The records alone
// are the truth. The index says where each chunk is; it is a database without a log of its own, and its newest changes
// are found again in the packs when the store is opened (replay.go). An index that is damaged or missing is built anew
// from all packs.
//
// Deleting a chunk appends a tombstone. Later its record is overwritten with zeros, by a hole in the file, and a pack
// that is mostly dead is copied and removed (reclaim.go). So what is not zero and not a record was damaged.
//
// Layout of the folder:
//
//	lock             held by the process that uses the store
//	packs/N.pack     the records
//	index/           where each chunk is
//	ballast          room that is given up to write tombstones and the index on a full disk
//
// The package must not know objects, nodes or networks.
package chunks

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// MaxSize is the size of the largest chunk: 4 MiB of content, and room for what encryption adds to it.
const MaxSize = 4<<20 + 64<<10

// Hash is the BLAKE3 digest of a chunk.
type Hash [32]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Options configures a store.
type Options struct {
	// Dir is created if it does not exist. One process at a time can use it.
	Dir    string
	Logger *slog.Logger
	// Reserve is how many bytes of the file system the store leaves free.
	Reserve int64
	// PackSize is about how large a pack grows; 1 GiB if 0.
	PackSize int64
	// Cache is how many bytes of the index are kept in memory; 32 MiB if 0.
	Cache int64
	// ReclaimRate is how many bytes a second are copied at most to return space; 32 MiB if 0.
	ReclaimRate int64
	// OnDamage is told about chunks that have turned out to be damaged. It must not call the store.
	OnDamage func([]Hash)
	// Now is the clock for the time of the last scrub; time.Now if nil.
	Now func() time.Time
}

func (o *Options) complete() error {
	if o.Dir == "" {
		return errors.New("the store of chunks needs a folder")
	}
	if o.Reserve < 0 || o.PackSize < 0 || o.Cache < 0 || o.ReclaimRate < 0 {
		return errors.New("the sizes and rates of the store of chunks cannot be negative")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.PackSize == 0 {
		o.PackSize = 1 << 30
	}
	if o.Cache == 0 {
		o.Cache = 32 << 20
	}
	if o.ReclaimRate == 0 {
		o.ReclaimRate = 32 << 20
	}
	if o.OnDamage == nil {
		o.OnDamage = func([]Hash) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Held is a chunk in the store.
type Held struct {
	Hash Hash
	// Epoch is the newest one in which it was put.
	Epoch uint64
}

// Stats is the state of a store and its disk.
type Stats struct {
	// Capacity is the size of the file system. Free is what the store may still use of it, without the reserve.
	Capacity, Free int64
	// Used is the size of all chunks in the packs.
	Used   int64
	Chunks int64
	// Class is "ssd", "hdd" or "unknown".
	Class string
	// Problem is why nothing can be stored now; it is empty if it can.
	Problem string
	// Scrubbed is when the last complete scrub ended.
	Scrubbed time.Time
	// Damaged counts the chunks that were found damaged, since the store was made.
	Damaged int64
}

// Errors that callers handle. They are wrapped with the chunk that they are about.
var (
	ErrMissing = errors.New("the chunk is not on this disk")
	ErrDamaged = errors.New("the chunk is damaged")
	ErrClosed  = errors.New("the store of chunks is closed")
)

// FullError refuses a chunk for which the disk has no room. Nothing has happened.
type FullError struct {
	Dir           string
	Free, Reserve int64
}

func (e *FullError) Error() string {
	return fmt.Sprintf("there is no space left on the disk for chunks: %d MiB are free for %s, and %d MiB are kept in reserve; make room there, nothing was changed",
		e.Free>>20, e.Dir, e.Reserve>>20)
}
