package chunks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/zeebo/blake3"
)

// Put returns when a chunk is on the disk, and counts as written in an epoch. If it is there and intact, only its epoch
// is raised. The data may be used again when Put returns.
func (s *Store) Put(ctx context.Context, hash Hash, data []byte, epoch uint64) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	s.foreground.Add(1)
	defer s.foreground.Add(-1)
	if len(data) > MaxSize {
		return fmt.Errorf("chunk %s has %d bytes and may have %d: cut it into smaller ones", hash, len(data), MaxSize)
	}
	if Hash(blake3.Sum256(data)) != hash {
		return fmt.Errorf("what was sent as chunk %s has another digest: %w", hash, ErrDamaged)
	}
	if err := s.locks.lock(ctx, hash); err != nil {
		return err
	}
	defer s.locks.unlock(hash)
	e, found, err := s.index.find(hash)
	if err != nil {
		return err
	}
	h := header{kind: kindChunk, size: uint32(len(data)), epoch: max(epoch, e.epoch), hash: hash}
	if found && s.same(e, hash, data) {
		if err := s.clearDamaged(hash); err != nil {
			return err
		}
		if e.epoch >= epoch {
			return nil
		}
		h.kind, h.size, data = kindStamp, 0, nil
	} else if err := s.room.check(recordSize(h.size)); err != nil {
		return err
	}
	return s.write(ctx, h, data)
}

// write appends a record. The caller holds the lock of its chunk.
func (s *Store) write(ctx context.Context, h header, data []byte) error {
	h.seq = s.seq.Add(1)
	r := newRequest(h, data)
	defer r.recycle()
	l := s.laneFor(recordSize(h.size))
	l.submit(r)
	return l.wait(ctx, r)
}

// laneFor chooses the lane for a record.
func (s *Store) laneFor(size int64) *lane {
	if size < bulkSize {
		return s.lanes[0]
	}
	best, least := s.lanes[1], s.lanes[1].load()
	for _, l := range s.lanes[2:] {
		if load := l.load(); load < least {
			best, least = l, load
		}
	}
	return best
}

// same is whether a stored chunk can be read and has the same data.
func (s *Store) same(e entry, hash Hash, data []byte) bool {
	if int(e.size) != len(data) {
		return false
	}
	buf := buffers.get()
	defer buffers.put(buf)
	stored, err := s.readBytes(e.location, (*buf)[:0])
	if err == nil && bytes.Equal(stored, data) {
		return true
	}
	s.reportDamage(hash, e.location, err)
	return false
}

// Get appends a part of a chunk to buf. A length of 0 is up to the end of the chunk. Every byte is checked: whole chunks
// by their digest, parts by the checksums of their blocks.
func (s *Store) Get(hash Hash, offset, length uint32, buf []byte) ([]byte, error) {
	if err := s.enter(); err != nil {
		return buf, err
	}
	defer s.leave()
	s.foreground.Add(1)
	defer s.foreground.Add(-1)
	for {
		e, found, err := s.index.find(hash)
		if err != nil {
			return buf, err
		}
		if !found {
			return buf, fmt.Errorf("chunk %s: %w", hash, ErrMissing)
		}
		if offset > e.size {
			return buf, fmt.Errorf("chunk %s has %d bytes, and none at %d", hash, e.size, offset)
		}
		if length == 0 || length > e.size-offset {
			length = e.size - offset
		}
		got, err := s.read(e.location, hash, offset, length, buf)
		if err == nil {
			return got, nil
		}
		if now, still, findErr := s.index.find(hash); findErr == nil && still && now.location == e.location {
			s.reportDamage(hash, e.location, err)
			return buf, fmt.Errorf("chunk %s: %w: %w", hash, ErrDamaged, err)
		}
		// It was deleted or moved meanwhile.
	}
}

// read appends a part of a record's data to buf.
func (s *Store) read(at location, hash Hash, offset, length uint32, buf []byte) ([]byte, error) {
	p := s.pack(at.pack)
	if p == nil {
		return buf, errPackLost
	}
	if length == at.size {
		return p.readWhole(at, hash, buf)
	}
	scratch := buffers.get()
	defer buffers.put(scratch)
	first, blocks, err := p.readBlocks(at, hash, offset, length, (*scratch)[:0])
	if err == nil {
		return append(buf, blocks[offset-first:][:length]...), nil
	}
	// Perhaps only the checksums are damaged.
	whole, err := p.readWhole(at, hash, (*scratch)[:0])
	if err != nil {
		return buf, err
	}
	return append(buf, whole[offset:][:length]...), nil
}

// readBytes appends the data of a record to buf, without any check.
func (s *Store) readBytes(at location, buf []byte) ([]byte, error) {
	p := s.pack(at.pack)
	if p == nil {
		return buf, errPackLost
	}
	return p.readBytes(at, buf)
}

var (
	errPackLost = errors.New("the file that had it is gone or cannot be read")
	errDigest   = errors.New("its bytes on the disk have another digest")
	errBlocks   = errors.New("its bytes on the disk have another checksum")
)

func (p *pack) readBytes(at location, buf []byte) ([]byte, error) {
	start := len(buf)
	buf = slices.Grow(buf, int(at.size))[:start+int(at.size)]
	_, err := p.file.ReadAt(buf[start:], at.offset+headSize(at.size))
	return buf, err
}

// readWhole appends the data of a record to buf if they have a digest.
func (p *pack) readWhole(at location, hash Hash, buf []byte) ([]byte, error) {
	got, err := p.readBytes(at, buf)
	if err != nil {
		return buf, err
	}
	if Hash(blake3.Sum256(got[len(buf):])) != hash {
		return buf, errDigest
	}
	return got, nil
}

// readBlocks appends the blocks with a part of a record's data to buf, and returns the offset of the first one.
func (p *pack) readBlocks(at location, hash Hash, offset, length uint32, buf []byte) (uint32, []byte, error) {
	var headBuf [headerSize + maxTable]byte
	head := headBuf[:headSize(at.size)]
	if _, err := p.file.ReadAt(head, at.offset); err != nil {
		return 0, buf, err
	}
	h, ok := parseHeader(head, p.marker, at.offset)
	if !ok || h.kind != kindChunk || h.hash != hash || h.size != at.size {
		return 0, buf, errBlocks
	}
	first := offset / blockSize * blockSize
	last := min((offset+length+blockSize-1)/blockSize*blockSize, at.size)
	buf = slices.Grow(buf, int(last-first))[:last-first]
	if _, err := p.file.ReadAt(buf, at.offset+headSize(at.size)+int64(first)); err != nil {
		return 0, buf, err
	}
	if !blocksIntact(head, at.size, int(first/blockSize), buf) {
		return 0, buf, errBlocks
	}
	return first, buf, nil
}

// reportDamage remembers that a chunk cannot be read at a place.
func (s *Store) reportDamage(hash Hash, at location, cause error) {
	marked, err := s.markDamaged(hash, at)
	if err != nil {
		s.logger.Warn("a damaged chunk cannot be remembered", "chunk", hash.String(), "error", err)
	}
	if marked {
		s.logger.Error("a chunk is damaged", "chunk", hash.String(), "pack", at.pack, "offset", at.offset, "error", cause)
		s.options.OnDamage([]Hash{hash})
	}
}

// Has is whether there is a chunk. It may turn out to be damaged.
func (s *Store) Has(hash Hash) (bool, error) {
	if err := s.enter(); err != nil {
		return false, err
	}
	defer s.leave()
	_, found, err := s.index.find(hash)
	return found, err
}

// Delete deletes chunks that were not put after an epoch. It returns the chunks that are not in the store any more, or
// never were. That is durable when Delete returns.
func (s *Store) Delete(ctx context.Context, hashes []Hash, upTo uint64) (deleted []Hash, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	hashes = slices.Clone(hashes)
	slices.SortFunc(hashes, func(a, b Hash) int { return bytes.Compare(a[:], b[:]) })
	for batch := range slices.Chunk(slices.Compact(hashes), deleteBatch) {
		gone, batchErr := s.deleteBatch(ctx, batch, upTo)
		deleted = append(deleted, gone...)
		if batchErr != nil {
			return deleted, batchErr
		}
	}
	return deleted, nil
}

// deleteBatch is how many chunks are locked at once.
const deleteBatch = 4096

// deleteBatch deletes chunks in ascending order: two calls cannot wait for each other.
func (s *Store) deleteBatch(ctx context.Context, hashes []Hash, upTo uint64) (deleted []Hash, err error) {
	type tombstone struct {
		hash Hash
		r    *request
	}
	var waiting []tombstone
	l := s.lanes[0]
	for _, hash := range hashes {
		if err = s.locks.lock(ctx, hash); err != nil {
			break
		}
		var e entry
		var found bool
		e, found, err = s.index.find(hash)
		if err == nil && found && e.epoch <= upTo {
			r := newRequest(header{kind: kindTombstone, seq: s.seq.Add(1), epoch: upTo, hash: hash}, nil)
			l.submit(r)
			waiting = append(waiting, tombstone{hash, r})
			continue
		}
		s.locks.unlock(hash)
		if err != nil {
			break
		}
		if !found {
			deleted = append(deleted, hash)
		}
	}
	for _, t := range waiting {
		// It does not end early: the caller wants to know which are deleted.
		if writeErr := <-t.r.done; writeErr == nil {
			deleted = append(deleted, t.hash)
		} else if err == nil {
			err = fmt.Errorf("delete chunk %s: %w", t.hash, writeErr)
		}
		t.r.recycle()
		s.locks.unlock(t.hash)
	}
	return deleted, err
}

// Stamp raises the epoch of a chunk like Put, without its data. It returns false if the chunk is not there, or known to
// be damaged.
func (s *Store) Stamp(ctx context.Context, hash Hash, epoch uint64) (bool, error) {
	if err := s.enter(); err != nil {
		return false, err
	}
	defer s.leave()
	if err := s.locks.lock(ctx, hash); err != nil {
		return false, err
	}
	defer s.locks.unlock(hash)
	e, found, err := s.index.find(hash)
	if err != nil || !found {
		return false, err
	}
	if damaged, err := s.index.has(hashKey(damagedKey, hash)); err != nil || damaged {
		return false, err
	}
	if e.epoch >= epoch {
		return true, nil
	}
	err = s.write(ctx, header{kind: kindStamp, epoch: epoch, hash: hash}, nil)
	return err == nil, err
}

// List returns the chunks that follow a hash, in ascending order; the zero hash is before the first. It leaves out those
// that are known to be damaged. last is whether there are no more.
func (s *Store) List(ctx context.Context, after Hash, limit int) (page []Held, last bool, err error) {
	if err := s.enter(); err != nil {
		return nil, false, err
	}
	defer s.leave()
	if limit <= 0 {
		return nil, false, fmt.Errorf("%d chunks cannot be listed", limit)
	}
	for len(page) == 0 && !last {
		if err := ctx.Err(); err != nil {
			return nil, false, err
		}
		if page, last, err = s.held(after, limit); err != nil || len(page) == 0 {
			return nil, last, err
		}
		from := after
		after = page[len(page)-1].Hash
		if page, err = s.withoutDamaged(from, page); err != nil {
			return nil, false, err
		}
	}
	return page, last, nil
}

func (s *Store) held(after Hash, limit int) (page []Held, last bool, err error) {
	last = true
	err = s.index.each(chunkKey, after[:], func(key, value []byte) (bool, error) {
		if len(page) == limit {
			last = false
			return false, nil
		}
		e, err := parseEntry(value)
		if err != nil || len(key) != len(Hash{}) {
			return false, errIndexValue
		}
		page = append(page, Held{Hash: Hash(key), Epoch: e.epoch})
		return true, nil
	})
	return page, last, err
}

// withoutDamaged takes the damaged chunks out of a page.
func (s *Store) withoutDamaged(after Hash, page []Held) ([]Held, error) {
	damaged := map[Hash]bool{}
	final := page[len(page)-1].Hash
	err := s.index.each(damagedKey, after[:], func(key, _ []byte) (bool, error) {
		if len(key) != len(Hash{}) || bytes.Compare(key, final[:]) > 0 {
			return false, nil
		}
		damaged[Hash(key)] = true
		return true, nil
	})
	return slices.DeleteFunc(page, func(h Held) bool { return damaged[h.Hash] }), err
}

// Damaged returns the chunks that follow a hash and are known to be damaged, in ascending order.
func (s *Store) Damaged(after Hash, limit int) (page []Hash, err error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	err = s.index.each(damagedKey, after[:], func(key, _ []byte) (bool, error) {
		if len(page) == limit || len(key) != len(Hash{}) {
			return false, nil
		}
		page = append(page, Hash(key))
		return true, nil
	})
	return page, err
}

// buffers are for one chunk each.
var buffers = bufferPool{sync.Pool{New: func() any {
	buf := make([]byte, 0, MaxSize)
	return &buf
}}}

type bufferPool struct{ sync.Pool }

func (p *bufferPool) get() *[]byte { return p.Pool.Get().(*[]byte) }

func (p *bufferPool) put(buf *[]byte) { p.Pool.Put(buf) }
