package chunks

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cloudless/cloudless/internal/sleep"
)

// Space is returned in two ways. Records that are dead are erased, which returns the whole blocks in them. Packs with
// little that is alive are copied to others and removed.
//
// A tombstone is needed while the record that it deletes could still be found in a pack, because an index that is built
// anew would have the chunk again. So no pack is removed before all dead records are erased durably.

const (
	// gatherDead is how long dead records are gathered before they are erased: neighbours are erased together.
	gatherDead = 200 * time.Millisecond
	eraseBatch = 1024
)

func (s *Store) wakeReclaim() {
	select {
	case s.reclaim <- struct{}{}:
	default:
	}
}

// tidy returns space until there is none to return.
func (s *Store) tidy(ctx context.Context) {
	if sleep.For(ctx, gatherDead) != nil {
		return
	}
	if err := s.room.restoreBallast(); err != nil {
		s.logger.Warn("no room can be kept for a full disk", "dir", s.options.Dir, "error", err)
	}
	if err := s.reclaimSpace(ctx); err != nil && ctx.Err() == nil {
		s.logger.Warn("space of deleted chunks was not returned; it is tried again", "dir", s.options.Dir, "error", err)
	}
}

// reclaimSpace erases what is dead and compacts packs that are mostly dead.
func (s *Store) reclaimSpace(ctx context.Context) error {
	s.reclaimMu.Lock()
	defer s.reclaimMu.Unlock()
	if err := s.eraseDead(ctx); err != nil {
		return err
	}
	for _, id := range s.packIDs() {
		p := s.pack(id)
		if !s.wasteful(p) {
			continue
		}
		if err := s.compact(ctx, p); err != nil {
			return fmt.Errorf("compact %s: %w", p.file.Name(), err)
		}
	}
	return nil
}

// deadRecord is a range of a pack that is to be erased.
type deadRecord struct {
	pack         uint32
	offset, size int64
}

// eraseDead erases all dead records durably.
func (s *Store) eraseDead(ctx context.Context) error {
	for ctx.Err() == nil {
		dead, err := s.deadRecords()
		if err != nil || len(dead) == 0 {
			return err
		}
		for len(dead) > 0 {
			n := 1
			for n < len(dead) && dead[n].pack == dead[0].pack {
				n++
			}
			if err := s.eraseIn(dead[:n]); err != nil {
				return err
			}
			dead = dead[n:]
		}
	}
	return ctx.Err()
}

// deadRecords returns some, in the order in which they are on the disk.
func (s *Store) deadRecords() (dead []deadRecord, err error) {
	err = s.index.each(deadKey, nil, func(key, value []byte) (bool, error) {
		if len(key) != 12 || len(value) != 4 {
			return false, errIndexValue
		}
		dead = append(dead, deadRecord{
			binary.BigEndian.Uint32(key), int64(binary.BigEndian.Uint64(key[4:])), int64(binary.LittleEndian.Uint32(value)),
		})
		return len(dead) < eraseBatch, nil
	})
	return dead, err
}

// eraseIn erases records of one pack.
func (s *Store) eraseIn(dead []deadRecord) error {
	if p := s.pack(dead[0].pack); p != nil {
		for i := 0; i < len(dead); {
			at, size := dead[i].offset, dead[i].size
			for i++; i < len(dead) && dead[i].offset == at+size; i++ {
				size += dead[i].size
			}
			if err := p.erase(at, size); err != nil {
				return fmt.Errorf("erase deleted chunks in %s: %w", p.file.Name(), err)
			}
		}
		if err := p.sync(); err != nil {
			return fmt.Errorf("erase deleted chunks in %s: %w", p.file.Name(), err)
		}
		s.room.forget()
	}
	return s.alter(func(c *change) error {
		for _, d := range dead {
			if err := c.batch.Delete(deadRecordKey(d.pack, d.offset), nil); err != nil {
				return err
			}
		}
		return nil
	})
}

// wasteful is whether a pack should be compacted: it has nothing alive, it takes twice the room of what is alive, or it
// is a large file with little in it.
func (s *Store) wasteful(p *pack) bool {
	if p == nil || p.open.Load() {
		return false
	}
	state := s.stateOf(p)
	size, err := p.size()
	if err != nil || size < state.end {
		return false // it is damaged: what is left of it stays readable
	}
	return state.live == 0 || 2*state.live+packStart < p.allocated() || 4*state.live+packStart < state.end
}

func (s *Store) stateOf(p *pack) packState {
	s.commits.Lock()
	defer s.commits.Unlock()
	return p.state
}

// compact copies what is alive in a pack, and removes it. A chunk that is damaged keeps the pack.
func (s *Store) compact(ctx context.Context, p *pack) error {
	m := &mover{s: s, ctx: ctx, from: p}
	w := walker{pack: p, from: packStart, to: s.stateOf(p).end, visit: m.visit, lost: func(int64, int64) {}}
	if err := w.walk(); err != nil {
		return err
	}
	if s.stateOf(p).live > 0 || m.kept {
		return nil
	}
	if err := s.eraseDead(ctx); err != nil {
		return err
	}
	return s.removePack(p)
}

// removePack removes a pack that has nothing alive.
func (s *Store) removePack(p *pack) error {
	err := s.alter(func(c *change) error {
		p.state.doomed = true
		c.touch(p)
		return nil
	})
	if err != nil {
		return err
	}
	// The index must not believe after a crash that something is in the pack, nor miss its tombstones.
	if err := s.index.flush(s.ctx); err != nil {
		return err
	}
	s.packsMu.Lock()
	delete(s.packs, p.id)
	s.packsMu.Unlock()
	if err := p.remove(s.packDir()); err != nil {
		return err
	}
	s.room.forget()
	return s.alter(func(c *change) error { return c.forgetPack(p.id) })
}

// forgetPack removes a pack from the index.
func (c *change) forgetPack(id uint32) error {
	return errors.Join(
		c.batch.Delete(packStateKey(id), nil),
		c.batch.DeleteRange(deadRecordKey(id, 0), deadRecordKey(id+1, 0), nil),
	)
}

// mover copies what is alive in a pack.
type mover struct {
	s    *Store
	ctx  context.Context
	from *pack
	kept bool // whether something could not be copied
}

func (m *mover) visit(offset int64, h header) error {
	if h.kind != kindChunk && h.kind != kindStamp {
		return nil
	}
	moved, err := m.move(offset, h)
	if err != nil {
		return err
	}
	return sleep.For(m.ctx, time.Duration(float64(moved)/float64(m.s.options.ReclaimRate)*float64(time.Second)))
}

// move copies a record if it is alive, and returns how many bytes that were.
func (m *mover) move(offset int64, h header) (int64, error) {
	s := m.s
	if err := s.locks.lock(m.ctx, h.hash); err != nil {
		return 0, err
	}
	defer s.locks.unlock(h.hash)
	e, found, err := s.index.find(h.hash)
	if err != nil || !found {
		return 0, err
	}
	if h.kind == kindStamp && e.seq == h.seq {
		return recordSize(0), s.write(m.ctx, header{kind: kindStamp, epoch: e.epoch, hash: h.hash}, nil)
	}
	if h.kind == kindStamp || e.pack != m.from.id || e.offset != offset {
		return 0, nil
	}
	buf := buffers.get()
	defer buffers.put(buf)
	data, err := m.from.readWhole(e.location, h.hash, (*buf)[:0])
	if err != nil {
		m.kept = true
		s.reportDamage(h.hash, e.location, err)
		return 0, nil
	}
	return recordSize(e.size), s.write(m.ctx, header{kind: kindChunk, size: e.size, epoch: e.epoch, hash: h.hash}, data)
}
