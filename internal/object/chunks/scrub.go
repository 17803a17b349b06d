package chunks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// Scrub reads every chunk and checks its digest, at most so many bytes a second. It slows down while others use the
// store. It calls progress now and then, with bytes that were checked, bytes there are, and chunks that are damaged.
func (s *Store) Scrub(ctx context.Context, rate int64, progress func(checked, total, damaged int64)) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if rate <= 0 {
		return fmt.Errorf("chunks cannot be checked at %d bytes a second", rate)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	sc := &scrub{s: s, ctx: ctx, rate: rate, progress: progress}
	for _, id := range s.packIDs() {
		if err := sc.pack(id); err != nil {
			if s.ctx.Err() != nil {
				return ErrClosed
			}
			return err
		}
	}
	if err := sc.findLost(); err != nil {
		return err
	}
	sc.report()
	return s.setScrubbed()
}

// setScrubbed remembers when the last scrub ended.
func (s *Store) setScrubbed() error {
	now := s.options.Now().Unix()
	s.scrubbed.Store(now)
	return s.alter(func(c *change) error { return c.batch.Set(metaNameKey(scrubbedMeta), number(uint64(now)), nil) })
}

// scrub is one pass over all packs.
type scrub struct {
	s        *Store
	ctx      context.Context
	rate     int64
	progress func(checked, total, damaged int64)

	checked, damaged int64
	sinceReport      int64
	// lost is where records cannot be found. Only the index knows which chunks are there.
	lost []lostRange
}

type lostRange struct {
	pack     uint32
	from, to int64
}

const (
	reportEvery = 16 << 20
	// yielding is how much slower a scrub is while others use the store.
	yielding = 4
)

// pack checks one pack in the order in which it is on the disk.
func (sc *scrub) pack(id uint32) error {
	p := sc.s.pack(id)
	if p == nil {
		return nil // it was compacted meanwhile
	}
	sc.s.commits.Lock()
	end := p.state.end
	sc.s.commits.Unlock()
	if size, err := p.size(); err == nil {
		end = min(end, size)
	}
	return walker{
		pack: p, from: packStart, to: end, cold: true,
		visit: func(offset int64, h header) error { return sc.record(p, offset, h) },
		lost:  func(from, to int64) { sc.lost = append(sc.lost, lostRange{id, from, to}) },
	}.walk()
}

// record checks one record.
func (sc *scrub) record(p *pack, offset int64, h header) error {
	if h.kind != kindChunk {
		return sc.ctx.Err()
	}
	at := location{pack: p.id, offset: offset, size: h.size}
	e, found, err := sc.s.index.find(h.hash)
	if err != nil {
		return err
	}
	if !found || e.location != at {
		return sc.ctx.Err() // it is dead
	}
	if err := p.verifyCold(at, h.hash); err != nil {
		sc.found(h.hash, at, err)
	} else if err := sc.s.clearDamaged(h.hash); err != nil {
		return err
	}
	return sc.pace(recordSize(h.size))
}

// found reports a damaged chunk if it is still there.
func (sc *scrub) found(hash Hash, at location, cause error) {
	e, found, err := sc.s.index.find(hash)
	if err == nil && found && e.location == at {
		sc.damaged++
		sc.s.reportDamage(hash, at, cause)
	}
}

// pace waits as long as reading so much may take.
func (sc *scrub) pace(size int64) error {
	sc.checked += size
	if sc.sinceReport += size; sc.sinceReport >= reportEvery {
		sc.report()
	}
	pause := time.Duration(float64(size) / float64(sc.rate) * float64(time.Second))
	if sc.s.foreground.Load() > 0 {
		pause *= yielding
	}
	return sleep.For(sc.ctx, pause)
}

func (sc *scrub) report() {
	sc.sinceReport = 0
	sc.progress(sc.checked, max(sc.s.used.Load(), sc.checked), sc.damaged)
}

// verifyCold reads a chunk from the disk, and not from the kernel's memory, and checks it completely.
func (p *pack) verifyCold(at location, hash Hash) error {
	buf := buffers.get()
	defer buffers.put(buf)
	if at.size > walkGlance { // what is smaller has just been read from the disk by the walk
		p.forgetCached(at.offset, recordSize(at.size))
	}
	if _, err := p.readWhole(at, hash, (*buf)[:0]); err != nil {
		return err
	}
	_, _, err := p.readBlocks(at, hash, 0, at.size, (*buf)[:0])
	return err
}

// findLost looks at the chunks that the index knows and whose records were not found.
func (sc *scrub) findLost() error {
	lost, err := sc.s.lostChunks(sc.s.index.each, sc.lost)
	if err != nil {
		return err
	}
	for _, l := range lost {
		if err := sc.recover(l); err != nil {
			return err
		}
	}
	return nil
}

// recover writes a chunk again if only the head of its record is damaged: an index that is built anew would not find it.
func (sc *scrub) recover(l lostChunk) error {
	s := sc.s
	if err := s.locks.lock(sc.ctx, l.hash); err != nil {
		return err
	}
	defer s.locks.unlock(l.hash)
	e, found, err := s.index.find(l.hash)
	if err != nil || !found || e.location != l.location {
		return err
	}
	buf := buffers.get()
	defer buffers.put(buf)
	data, err := s.read(e.location, l.hash, 0, e.size, (*buf)[:0])
	if err != nil {
		sc.found(l.hash, l.location, err)
		return nil
	}
	if p := s.pack(e.pack); p != nil && p.verifyCold(e.location, l.hash) == nil {
		return nil // it was moved to where it is while packs were read
	}
	s.logger.Warn("the head of a chunk's record is damaged; the chunk is written again", "chunk", l.hash.String(), "pack", e.pack)
	return s.write(sc.ctx, header{kind: kindChunk, size: e.size, epoch: e.epoch, hash: l.hash}, data)
}

type lostChunk struct {
	hash Hash
	location
}

// lostChunks returns the chunks in ranges, and those of which the pack is missing or too short.
func (s *Store) lostChunks(each iterate, ranges []lostRange) (lost []lostChunk, err error) {
	sizes := map[uint32]int64{}
	for _, id := range s.packIDs() {
		if p := s.pack(id); p != nil {
			if sizes[id], err = p.size(); err != nil {
				return nil, err
			}
		}
	}
	byPack := map[uint32][]lostRange{}
	for _, r := range ranges {
		byPack[r.pack] = append(byPack[r.pack], r)
	}
	gone := func(at location) bool {
		size, known := sizes[at.pack]
		if !known || at.offset+headSize(at.size)+int64(at.size) > size {
			return true
		}
		return slices.ContainsFunc(byPack[at.pack], func(r lostRange) bool { return at.offset >= r.from && at.offset < r.to })
	}
	err = each(chunkKey, nil, func(key, value []byte) (bool, error) {
		e, err := parseEntry(value)
		if err != nil || len(key) != len(Hash{}) {
			return false, errIndexValue
		}
		if gone(e.location) {
			lost = append(lost, lostChunk{Hash(key), e.location})
		}
		return true, nil
	})
	return lost, err
}

// markLost marks the chunks of packs that are missing or too short. It is part of replay.
func (s *Store) markLost() error {
	lost, err := s.lostChunks(s.index.eachIn, nil)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(lost, batchRecords) {
		var marked []Hash
		err := s.change(false, func(c *change) error {
			for _, l := range part {
				isNew, err := c.mark(l.hash)
				if err != nil {
					return err
				}
				if isNew {
					marked = append(marked, l.hash)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if len(marked) > 0 {
			s.options.OnDamage(marked)
		}
	}
	return nil
}
