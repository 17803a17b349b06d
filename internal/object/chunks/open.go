package chunks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloudless/cloudless/internal/lockfile"
)

// Store keeps chunks in a folder. Its methods can be called at the same time.
type Store struct {
	options Options
	logger  *slog.Logger
	lock    *lockfile.Lock
	room    *room
	index   *index
	locks   locks
	class   string

	// commits orders the changes of the index and guards the states of the packs.
	commits sync.Mutex
	packsMu sync.RWMutex
	packs   map[uint32]*pack
	// nextPack is guarded by packsMu. Numbers are never used again.
	nextPack uint32

	// lanes has the one for small records first.
	lanes []*lane
	seq   atomic.Uint64

	used, chunks, damaged atomic.Int64
	scrubbed              atomic.Int64
	foreground            atomic.Int64 // calls that users wait for
	problem               atomic.Pointer[string]

	// calls is held for reading by every call, so that Close can wait for them.
	calls  sync.RWMutex
	closed bool

	ctx       context.Context
	cancel    context.CancelFunc
	wait      sync.WaitGroup
	reclaim   chan struct{}
	rebuild   chan error
	reclaimMu sync.Mutex
}

// Open opens or creates a store. Damage on the disk does not prevent it: what cannot be read is reported to OnDamage.
func Open(o Options) (_ *Store, err error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Store{
		options: o, logger: o.Logger,
		packs:   map[uint32]*pack{},
		locks:   locks{held: map[Hash]chan struct{}{}},
		reclaim: make(chan struct{}, 1),
		rebuild: make(chan error, 1),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = fmt.Errorf("open the chunks in %s: %w", o.Dir, errors.Join(err, s.release(false)))
		}
	}()
	if err := os.MkdirAll(s.packDir(), 0o700); err != nil {
		return nil, err
	}
	if s.lock, err = lockfile.Hold(filepath.Join(o.Dir, "lock")); err != nil {
		if errors.Is(err, lockfile.ErrHeld) {
			return nil, errors.New("another process is using them: stop that one first")
		}
		return nil, err
	}
	s.class = diskClass(o.Dir)
	s.room = newRoom(o.Dir, o.Reserve)
	s.index = &index{
		dir: filepath.Join(o.Dir, "index"), cache: o.Cache, room: s.room, logger: s.logger,
		damaged: s.indexDamaged,
	}
	if err := s.openIndex(); err != nil {
		return nil, err
	}
	s.startLanes()
	s.wait.Go(s.mind)
	s.wakeReclaim()
	return s, nil
}

func (s *Store) packDir() string { return filepath.Join(s.options.Dir, "packs") }

// openIndex opens the index and replays what it does not know. If that is not possible, it builds the index anew.
func (s *Store) openIndex() error {
	err := s.index.open(false)
	if err == nil {
		if err = s.replay(); err == nil {
			select {
			case err = <-s.rebuild: // something was wrong with the index
			default:
				return nil
			}
		}
	}
	if isFull(err) {
		return errors.Join(s.room.full(), err)
	}
	s.logger.Warn("the index of chunks cannot be used and is built anew", "dir", s.options.Dir, "error", err)
	if err := s.index.close(false); err != nil {
		s.logger.Info("the old index of chunks was not closed properly", "error", err)
	}
	return s.buildIndex()
}

// buildIndex replaces the index by one that is made from the packs alone.
func (s *Store) buildIndex() error {
	s.closePacks()
	select {
	case <-s.rebuild:
	default:
	}
	if err := s.index.open(true); err != nil {
		return fmt.Errorf("make a new index: %w", err)
	}
	if err := s.replay(); err != nil {
		return err
	}
	_, err := s.index.db.AsyncFlush()
	return err
}

// indexDamaged has the index built anew.
func (s *Store) indexDamaged(err error) {
	select {
	case s.rebuild <- err:
	default:
	}
}

// startLanes has packs with room appended to.
func (s *Store) startLanes() {
	for range 1 + bulkLanes {
		l := &lane{s: s, wake: make(chan struct{}, 1)}
		s.lanes = append(s.lanes, l)
		s.wait.Go(l.run)
	}
	s.assignPacks()
}

// assignPacks gives packs with room to lanes, the newest first.
func (s *Store) assignPacks() {
	ids := s.packIDs()
	slices.Reverse(ids)
	free := s.lanes
	for _, id := range ids {
		if len(free) == 0 {
			return
		}
		p := s.pack(id)
		size, err := p.size()
		if err == nil && !p.state.doomed && p.state.end < s.options.PackSize && size == p.state.end {
			free[0].use(p)
			free = free[1:]
		}
	}
}

// pack returns nil for one that is not there.
func (s *Store) pack(id uint32) *pack {
	s.packsMu.RLock()
	defer s.packsMu.RUnlock()
	return s.packs[id]
}

// packIDs are the numbers of all packs in ascending order.
func (s *Store) packIDs() []uint32 {
	s.packsMu.RLock()
	defer s.packsMu.RUnlock()
	ids := make([]uint32, 0, len(s.packs))
	for id := range s.packs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (s *Store) addPack(p *pack) {
	s.packsMu.Lock()
	defer s.packsMu.Unlock()
	s.packs[p.id] = p
	s.nextPack = max(s.nextPack, p.id+1)
}

// newPack creates a pack.
func (s *Store) newPack() (*pack, error) {
	s.packsMu.Lock()
	id := s.nextPack
	s.nextPack++
	s.packsMu.Unlock()
	p, err := createPack(s.packDir(), id)
	if err != nil {
		return nil, fmt.Errorf("create a pack of chunks: %w", err)
	}
	p.open.Store(true) // before others see it: an empty pack that nobody appends to is removed
	s.addPack(p)
	err = s.alter(func(c *change) error {
		c.touch(p)
		return c.batch.Set(metaNameKey(nextPackMeta), number(uint64(id)+1), nil)
	})
	if err != nil {
		p.open.Store(false)
		return nil, err
	}
	return p, nil
}

func (s *Store) closePacks() {
	s.packsMu.Lock()
	defer s.packsMu.Unlock()
	for _, p := range s.packs {
		if err := p.file.Close(); err != nil {
			s.logger.Warn("a pack of chunks was not closed properly", "pack", p.id, "error", err)
		}
	}
	clear(s.packs)
}

// enter begins a call. It is followed by leave.
func (s *Store) enter() error {
	s.calls.RLock()
	if s.closed {
		s.calls.RUnlock()
		return ErrClosed
	}
	return nil
}

func (s *Store) leave() { s.calls.RUnlock() }

// Close waits for calls that have begun, and closes all files. Later calls fail with [ErrClosed].
func (s *Store) Close() error { return s.end(true) }

// end closes the store. Without flush, the index forgets its newest changes.
func (s *Store) end(flush bool) error {
	s.cancel()
	s.calls.Lock()
	closed := s.closed
	s.closed = true
	s.calls.Unlock()
	if closed {
		return nil
	}
	for _, l := range s.lanes {
		l.close()
	}
	s.wait.Wait()
	if err := s.release(flush); err != nil {
		return fmt.Errorf("close the chunks in %s: %w", s.options.Dir, err)
	}
	return nil
}

// release closes everything that is open.
func (s *Store) release(flush bool) error {
	s.cancel()
	var err error
	if s.index != nil {
		err = s.index.close(flush)
	}
	s.closePacks()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// mind keeps the store in order until it is closed.
func (s *Store) mind() {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case err := <-s.rebuild:
			s.replaceIndex(err)
		case <-s.reclaim:
			s.tidy(s.ctx)
		case <-tick.C:
			s.tidy(s.ctx)
		}
	}
}

// replaceIndex builds the index anew while calls wait.
func (s *Store) replaceIndex(reason error) {
	s.logger.Error("the index of chunks is damaged and is built anew", "dir", s.options.Dir, "error", reason)
	for _, l := range s.lanes {
		l.writing.Lock()
		defer l.writing.Unlock()
		l.drop()
	}
	s.commits.Lock()
	defer s.commits.Unlock()
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	if err := s.index.close(false); err != nil {
		s.logger.Info("the old index of chunks was not closed properly", "error", err)
	}
	if err := s.buildIndex(); err != nil {
		s.logger.Error("the index of chunks cannot be built anew; it is tried again", "error", err)
		_ = s.index.close(false)
		time.AfterFunc(rebuildPause, func() { s.indexDamaged(err) })
		return
	}
	s.assignPacks()
	s.logger.Info("the index of chunks was built anew", "chunks", s.chunks.Load())
}

const (
	// tidyEvery is how often packs are looked at although nothing was deleted.
	tidyEvery = time.Minute
	// rebuildPause is the pause after an index could not be built.
	rebuildPause = time.Minute
)
