package chunks

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// op is a record and its place.
type op struct {
	header
	at location
}

// change collects what records change in the index. It is used under Store.commits, which orders all changes.
type change struct {
	s     *Store
	batch *pebble.Batch
	// read shows the index with what the change has done already, if records about the same chunk can follow each other.
	read pebble.Reader
	// touched are the packs whose states change.
	touched []*pack
	dead    bool
}

// commit enters durable records of a pack into the index. They end at an offset.
func (s *Store) commit(p *pack, end int64, ops []op) error {
	return s.alter(func(c *change) error {
		if p.state.end >= end {
			return nil // the index was built anew meanwhile, and has them
		}
		for _, o := range ops {
			if err := c.apply(o); err != nil {
				return err
			}
			p.state.seq = max(p.state.seq, o.seq)
		}
		p.state.end = end
		c.touch(p)
		return nil
	})
}

// alter makes one atomic change to the index.
func (s *Store) alter(f func(*change) error) error {
	s.commits.Lock()
	defer s.commits.Unlock()
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if s.index.db == nil {
		return errNoIndex
	}
	return s.change(false, f)
}

// change is alter for callers that have the index for themselves. Nested batches read their own writes.
func (s *Store) change(nested bool, f func(*change) error) (err error) {
	c := &change{s: s, read: s.index.db}
	if nested {
		c.batch = s.index.db.NewIndexedBatch()
		c.read = c.batch
	} else {
		c.batch = s.index.db.NewBatch()
	}
	defer func() { err = errors.Join(err, c.batch.Close()) }()
	if err := f(c); err != nil {
		return err
	}
	for _, p := range c.touched {
		if err := c.batch.Set(packStateKey(p.id), p.state.encode(), nil); err != nil {
			return err
		}
	}
	if err := c.batch.Commit(pebble.NoSync); err != nil {
		s.index.damaged(err)
		return fmt.Errorf("write the index of chunks: %w", err)
	}
	if c.dead {
		s.wakeReclaim()
	}
	return nil
}

func (c *change) touch(p *pack) {
	for _, known := range c.touched {
		if known == p {
			return
		}
	}
	c.touched = append(c.touched, p)
}

// apply enters a record. Records come in any order when packs are replayed; the one with the highest sequence number
// counts.
func (c *change) apply(o op) error {
	old, found, err := c.s.index.findIn(c.read, o.hash)
	if err != nil {
		return err
	}
	switch o.kind {
	case kindChunk:
		return c.applyChunk(o, old, found)
	case kindStamp:
		if !found || old.seq >= o.seq {
			return nil
		}
		old.seq, old.epoch = o.seq, o.epoch
		return c.set(o.hash, old)
	case kindTombstone:
		if !found || old.seq >= o.seq {
			return nil
		}
		if err := c.batch.Delete(hashKey(chunkKey, o.hash), nil); err != nil {
			return err
		}
		return errors.Join(c.batch.Delete(hashKey(damagedKey, o.hash), nil), c.bury(old.location))
	default:
		return nil
	}
}

func (c *change) applyChunk(o op, old entry, found bool) error {
	if found && old.seq >= o.seq {
		if old.location == o.at {
			return nil
		}
		return c.erase(o.at)
	}
	e := entry{location: o.at, seq: o.seq, epoch: o.epoch}
	if found {
		if err := c.bury(old.location); err != nil {
			return err
		}
		if err := c.batch.Delete(hashKey(damagedKey, o.hash), nil); err != nil {
			return err
		}
	}
	if p := c.s.pack(o.at.pack); p != nil {
		p.state.live += recordSize(o.size)
		p.state.chunks++
		c.touch(p)
		c.s.used.Add(recordSize(o.size))
		c.s.chunks.Add(1)
	}
	return c.set(o.hash, e)
}

func (c *change) set(hash Hash, e entry) error {
	return c.batch.Set(hashKey(chunkKey, hash), e.encode(), nil)
}

// bury takes the record of a chunk out of the accounts, and has it erased.
func (c *change) bury(at location) error {
	p := c.s.pack(at.pack)
	if p == nil {
		return nil // the pack is lost
	}
	size := recordSize(at.size)
	c.s.used.Add(-size)
	c.s.chunks.Add(-1)
	p.state.live -= size
	p.state.chunks--
	c.touch(p)
	return c.erase(at)
}

// erase has a record erased.
func (c *change) erase(at location) error {
	c.dead = true
	size := binary.LittleEndian.AppendUint32(nil, uint32(recordSize(at.size)))
	return c.batch.Set(deadRecordKey(at.pack, at.offset), size, nil)
}

// markDamaged remembers that a chunk cannot be read at a place. It returns false if that is known or not true any more.
func (s *Store) markDamaged(hash Hash, at location) (bool, error) {
	marked := false
	err := s.alter(func(c *change) error {
		e, found, err := s.index.findIn(c.read, hash)
		if err != nil || !found || e.location != at {
			return err
		}
		marked, err = c.mark(hash)
		return err
	})
	return marked && err == nil, err
}

// mark remembers that a chunk is damaged. It returns false if that is known.
func (c *change) mark(hash Hash) (bool, error) {
	key := hashKey(damagedKey, hash)
	if known, err := c.s.index.hasIn(c.read, key); err != nil || known {
		return false, err
	}
	total := number(uint64(c.s.damaged.Add(1)))
	return true, errors.Join(c.batch.Set(key, nil, nil), c.batch.Set(metaNameKey(damagedMeta), total, nil))
}

// clearDamaged forgets that a chunk could not be read.
func (s *Store) clearDamaged(hash Hash) error {
	marked, err := s.index.has(hashKey(damagedKey, hash))
	if err != nil || !marked {
		return err
	}
	return s.alter(func(c *change) error { return c.batch.Delete(hashKey(damagedKey, hash), nil) })
}
