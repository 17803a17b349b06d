package chunks

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// replay opens all packs and enters what the index does not know. It is called while nothing else uses the index, with
// Store.commits and the lock of the index held or before anybody else has the store.
func (s *Store) replay() error {
	known, err := s.readStates()
	if err != nil {
		return err
	}
	s.resetCounts()
	ids, err := listPacks(s.packDir())
	if err != nil {
		return err
	}
	slices.Sort(ids)
	incomplete := false
	for _, id := range ids {
		state, ok := known[id]
		delete(known, id)
		if ok && state.doomed {
			if err := s.removeDoomed(id); err != nil {
				return err
			}
			continue
		}
		whole, err := s.replayPack(id, state)
		if err != nil {
			return fmt.Errorf("read %s: %w", packPath(s.packDir(), id), err)
		}
		incomplete = incomplete || !whole
	}
	for id, state := range known {
		s.seq.Store(max(s.seq.Load(), state.seq))
		if !state.doomed && state.live > 0 {
			s.logger.Error("a pack of chunks is missing", "path", packPath(s.packDir(), id), "chunks", state.chunks)
			incomplete = true
		}
	}
	if err := s.settleLater(); err != nil {
		return err
	}
	return s.finishReplay(known, incomplete)
}

// readStates returns what the index knows of packs.
func (s *Store) readStates() (map[uint32]*packState, error) {
	known := map[uint32]*packState{}
	err := s.index.eachIn(packKey, nil, func(key, value []byte) (bool, error) {
		state, err := parsePackState(value)
		if err != nil || len(key) != 4 {
			return false, errIndexValue
		}
		known[binary.BigEndian.Uint32(key)] = &state
		return true, nil
	})
	return known, err
}

func (s *Store) resetCounts() {
	s.used.Store(0)
	s.chunks.Store(0)
}

func (s *Store) removeDoomed(id uint32) error {
	if err := os.Remove(packPath(s.packDir(), id)); err != nil {
		return err
	}
	return s.change(false, func(c *change) error { return c.forgetPack(id) })
}

// replayPack returns false if something is missing that the index knows.
func (s *Store) replayPack(id uint32, known *packState) (whole bool, err error) {
	p, err := openPack(s.packDir(), id, known)
	if errors.Is(err, errNoMarker) {
		return s.skipPack(id)
	}
	if err != nil {
		return false, err
	}
	s.addPack(p)
	s.used.Add(p.state.live)
	s.chunks.Add(p.state.chunks)
	s.seq.Store(max(s.seq.Load(), p.state.seq))
	size, err := p.size()
	if err != nil {
		return false, err
	}
	if size < p.state.end {
		s.logger.Error("a pack of chunks is shorter than it was", "path", p.file.Name(), "bytes", size, "were", p.state.end)
		return false, nil
	}
	r := &replayed{s: s, p: p, good: p.state.end}
	if err := (walker{pack: p, from: p.state.end, to: size, visit: r.visit, lost: r.lost}).walk(); err != nil {
		return false, err
	}
	return true, r.finish(size)
}

// skipPack handles a file in which no records can be found.
func (s *Store) skipPack(id uint32) (bool, error) {
	path := packPath(s.packDir(), id)
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	s.packsMu.Lock()
	s.nextPack = max(s.nextPack, id+1)
	s.packsMu.Unlock()
	if info.Size() <= packStart {
		return true, os.Remove(path) // it was being created
	}
	s.logger.Error("a pack of chunks cannot be read, because its header and its first record are damaged", "path", path)
	return false, nil
}

// replayed is a pack during replay. A batch was written only when the one before it was durable. So only the last batch
// may be torn, and its data are verified before its records count.
type replayed struct {
	s       *Store
	p       *pack
	pending []op // of the newest batch
	good    int64
	sealed  bool
}

func (r *replayed) visit(offset int64, h header) error {
	if h.first || len(r.pending) >= batchRecords {
		if err := r.apply(r.pending); err != nil {
			return err
		}
		r.pending = r.pending[:0]
	}
	r.sealed = h.kind == kindSeal
	r.pending = append(r.pending, op{h, location{pack: r.p.id, size: h.size, offset: offset}})
	return nil
}

func (r *replayed) lost(from, to int64) {
	r.s.logger.Warn("a part of a pack of chunks is damaged", "path", r.p.file.Name(), "offset", from, "bytes", to-from)
}

// finish enters the last batch and cuts off what was not completely written.
func (r *replayed) finish(size int64) error {
	var torn []op
	if !r.sealed {
		torn = r.verify()
	}
	if err := r.apply(r.pending); err != nil {
		return err
	}
	if err := r.erase(torn); err != nil {
		return err
	}
	if size == r.good {
		return nil
	}
	r.s.logger.Info("the end of a pack of chunks was not completely written and is removed",
		"path", r.p.file.Name(), "bytes", size-r.good)
	if err := r.p.file.Truncate(r.good); err != nil {
		r.s.logger.Warn("nothing is appended to a pack of chunks whose end cannot be removed", "path", r.p.file.Name(), "error", err)
	}
	return nil
}

// verify takes the records out of the pending ones whose data are not as they should be.
func (r *replayed) verify() (torn []op) {
	buf := buffers.get()
	defer buffers.put(buf)
	r.pending = slices.DeleteFunc(r.pending, func(o op) bool {
		if o.kind != kindChunk {
			return false
		}
		_, err := r.p.readWhole(o.at, o.hash, (*buf)[:0])
		if err != nil {
			torn = append(torn, o)
		}
		return err != nil
	})
	return torn
}

// apply enters records. The ones about chunks that may be found later wait until all packs are replayed.
func (r *replayed) apply(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return r.s.change(true, func(c *change) error {
		for _, o := range ops {
			var err error
			switch o.kind {
			case kindStamp:
				err = c.later(stampKey, o)
			case kindTombstone:
				err = c.later(tombstoneKey, o)
			default:
				err = c.apply(o)
			}
			if err != nil {
				return err
			}
			r.p.state.seq = max(r.p.state.seq, o.seq)
			r.good = max(r.good, o.at.offset+recordSize(o.size))
		}
		r.s.seq.Store(max(r.s.seq.Load(), r.p.state.seq))
		r.p.state.end = max(r.p.state.end, r.good)
		c.touch(r.p)
		return nil
	})
}

// erase has torn records erased that good ones follow.
func (r *replayed) erase(torn []op) error {
	torn = slices.DeleteFunc(torn, func(o op) bool { return o.at.offset >= r.good })
	if len(torn) == 0 {
		return nil
	}
	return r.s.change(false, func(c *change) error {
		for _, o := range torn {
			if err := c.erase(o.at); err != nil {
				return err
			}
		}
		return nil
	})
}

// later keeps the newest record of its kind about a chunk.
func (c *change) later(letter byte, o op) error {
	key := hashKey(letter, o.hash)
	value, done, err := c.read.Get(key)
	if err == nil {
		newer := len(value) == 16 && binary.LittleEndian.Uint64(value) >= o.seq
		if err := done.Close(); err != nil || newer {
			return err
		}
	} else if !errors.Is(err, pebble.ErrNotFound) {
		return err
	}
	return c.batch.Set(key, binary.LittleEndian.AppendUint64(number(o.seq), o.epoch), nil)
}

// settleLater applies the stamps and tombstones that were kept.
func (s *Store) settleLater() error {
	for letter, k := range map[byte]kind{stampKey: kindStamp, tombstoneKey: kindTombstone} {
		for {
			var ops []op
			err := s.index.eachIn(letter, nil, func(key, value []byte) (bool, error) {
				if len(key) != len(Hash{}) || len(value) != 16 {
					return false, errIndexValue
				}
				ops = append(ops, op{header: header{
					kind: k, hash: Hash(key),
					seq: binary.LittleEndian.Uint64(value), epoch: binary.LittleEndian.Uint64(value[8:]),
				}})
				return len(ops) < batchRecords, nil
			})
			if err != nil {
				return err
			}
			if len(ops) == 0 {
				break
			}
			if err := s.settle(letter, ops); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *Store) settle(letter byte, ops []op) error {
	return s.change(false, func(c *change) error {
		for _, o := range ops {
			if err := errors.Join(c.apply(o), c.batch.Delete(hashKey(letter, o.hash), nil)); err != nil {
				return err
			}
		}
		return nil
	})
}

// finishReplay reads the numbers of the index, and finds the chunks of packs that are missing or too short.
func (s *Store) finishReplay(missing map[uint32]*packState, incomplete bool) error {
	next, err := s.index.meta(nextPackMeta)
	if err != nil {
		return err
	}
	for id := range missing {
		next = max(next, uint64(id)+1)
	}
	s.nextPack = max(s.nextPack, uint32(next), 1)
	scrubbed, scrubErr := s.index.meta(scrubbedMeta)
	damaged, damagedErr := s.index.meta(damagedMeta)
	if err := errors.Join(scrubErr, damagedErr); err != nil {
		return err
	}
	s.scrubbed.Store(int64(scrubbed))
	s.damaged.Store(max(s.damaged.Load(), int64(damaged)))
	if !incomplete {
		return nil
	}
	return s.markLost()
}
