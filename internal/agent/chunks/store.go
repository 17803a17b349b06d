package chunks

import (
	"context"
	"errors"
	"fmt"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/object/chunks"
	"github.com/cloudless/cloudless/internal/object/transfer"
)

// Store keeps the chunks of this node. Its errors are those of package transfer, as far as callers handle them.
type Store interface {
	// Put returns when the chunk is on the disk. It refuses data with another digest as damaged.
	Put(ctx context.Context, hash transfer.Hash, data []byte, epoch uint64) error
	// Stamp says that a chunk is needed in an epoch, and reports whether it is here.
	Stamp(ctx context.Context, hash transfer.Hash, epoch uint64) (had bool, err error)
	// Get appends a part of a chunk to buf; a length of 0 is up to its end.
	Get(ctx context.Context, hash transfer.Hash, offset, length uint32, buf []byte) ([]byte, error)
	// Delete returns the chunks that are not here any more. It keeps those that were written after the epoch.
	Delete(ctx context.Context, hashes []transfer.Hash, epoch uint64) ([]transfer.Hash, error)
	// List returns a page of the chunks that are not damaged, in ascending order.
	List(ctx context.Context, after transfer.Hash, limit int) (page []Held, last bool, err error)
	// Scrub checks all chunks.
	Scrub(ctx context.Context, rate int64, progress func(checked, total, damaged int64)) error
	Stats() *v1.DiskStatus
	Close() error
}

// Held is a chunk, and the epoch in which it was last written.
type Held struct {
	Hash  transfer.Hash
	Epoch uint64
}

// openStore opens the chunks on the disk.
func openStore(o Options, damaged func([][]byte)) Store {
	opened, err := chunks.Open(chunks.Options{
		Dir: o.Dir, Logger: o.Logger, Reserve: o.Reserve,
		OnDamage: func(hashes []chunks.Hash) {
			digests := make([][]byte, len(hashes))
			for i := range hashes {
				digests[i] = hashes[i][:]
			}
			damaged(digests)
		},
	})
	if err != nil {
		o.Logger.Error("This node stores no chunks for the object store.", "error", err)
		return unusable{fmt.Errorf("the store of chunks in %s cannot be opened: %w", o.Dir, err)}
	}
	return onDisk{opened}
}

// onDisk is the store of package chunks.
type onDisk struct{ store *chunks.Store }

// translated is an error of the store in the words of package transfer.
func translated(err error) error {
	_, full := errors.AsType[*chunks.FullError](err)
	for _, one := range []struct {
		is     bool
		theirs error
	}{
		{full, transfer.ErrFull}, {errors.Is(err, chunks.ErrMissing), transfer.ErrMissing}, {errors.Is(err, chunks.ErrDamaged), transfer.ErrDamaged},
	} {
		if one.is {
			return fmt.Errorf("%w: %w", one.theirs, err)
		}
	}
	return err
}

func (d onDisk) Put(ctx context.Context, hash transfer.Hash, data []byte, epoch uint64) error {
	return translated(d.store.Put(ctx, chunks.Hash(hash), data, epoch))
}

func (d onDisk) Stamp(ctx context.Context, hash transfer.Hash, epoch uint64) (bool, error) {
	had, err := d.store.Stamp(ctx, chunks.Hash(hash), epoch)
	return had, translated(err)
}

func (d onDisk) Get(_ context.Context, hash transfer.Hash, offset, length uint32, buf []byte) ([]byte, error) {
	data, err := d.store.Get(chunks.Hash(hash), offset, length, buf)
	return data, translated(err)
}

func (d onDisk) Delete(ctx context.Context, hashes []transfer.Hash, epoch uint64) ([]transfer.Hash, error) {
	named := make([]chunks.Hash, len(hashes))
	for i, hash := range hashes {
		named[i] = chunks.Hash(hash)
	}
	deleted, err := d.store.Delete(ctx, named, epoch)
	gone := make([]transfer.Hash, len(deleted))
	for i, hash := range deleted {
		gone[i] = transfer.Hash(hash)
	}
	return gone, translated(err)
}

func (d onDisk) List(ctx context.Context, after transfer.Hash, limit int) ([]Held, bool, error) {
	held, last, err := d.store.List(ctx, chunks.Hash(after), limit)
	page := make([]Held, len(held))
	for i, one := range held {
		page[i] = Held{Hash: transfer.Hash(one.Hash), Epoch: one.Epoch}
	}
	return page, last, translated(err)
}

func (d onDisk) Scrub(ctx context.Context, rate int64, progress func(checked, total, damaged int64)) error {
	return translated(d.store.Scrub(ctx, rate, progress))
}

func (d onDisk) Stats() *v1.DiskStatus {
	now := d.store.Stats()
	status := &v1.DiskStatus{
		Capacity: now.Capacity, Free: now.Free, Used: now.Used, Chunks: now.Chunks, Class: now.Class, Problem: now.Problem,
		DamagedTotal: now.Damaged,
	}
	if !now.Scrubbed.IsZero() {
		status.Scrubbed = now.Scrubbed.Unix()
	}
	return status
}

func (d onDisk) Close() error { return d.store.Close() }

// unusable stands for a store that cannot be opened. Every call tells why.
type unusable struct{ why error }

func (u unusable) Put(context.Context, transfer.Hash, []byte, uint64) error { return u.why }

func (u unusable) Stamp(context.Context, transfer.Hash, uint64) (bool, error) { return false, u.why }

func (u unusable) Get(_ context.Context, _ transfer.Hash, _, _ uint32, buf []byte) ([]byte, error) {
	return buf, u.why
}

func (u unusable) Delete(context.Context, []transfer.Hash, uint64) ([]transfer.Hash, error) {
	return nil, u.why
}

func (u unusable) List(context.Context, transfer.Hash, int) ([]Held, bool, error) {
	return nil, false, u.why
}

func (u unusable) Scrub(context.Context, int64, func(checked, total, damaged int64)) error {
	return u.why
}

func (u unusable) Stats() *v1.DiskStatus {
	return &v1.DiskStatus{Class: "unknown", Problem: u.why.Error()}
}

func (u unusable) Close() error { return nil }
