package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/blake3"
)

const (
	// readTimeout ends a read from one node.
	readTimeout = 30 * time.Second
	// minHedge and maxHedge bound after how long a chunk is read from a second node as well.
	minHedge, maxHedge = 20 * time.Millisecond, 2 * time.Second
	// wholeBelow is the size up to which a chunk is read as a whole, whatever part of it is wanted.
	wholeBelow = 64 << 10
)

// piece is a part of a chunk to read.
type piece struct {
	hash           Hash
	size           uint32
	offset, length uint32
	// nodes are the UIDs of those that have it.
	nodes []string
	// sealed is how the chunk is decrypted.
	sealed sealing
}

// whole is whether all of the chunk is read, so that its digest can be checked here. For a smaller part of it that would
// be many times the traffic. Then the node's check is enough: it reads and checks the whole chunk before it sends the
// part, and the connection between the two is authenticated.
func (p piece) whole() bool { return p.size <= wholeBelow || 2*p.length >= p.size }

// room is how much memory reading takes.
func (p piece) room() int {
	if p.whole() {
		return int(p.size)
	}
	return int(p.length)
}

// fetch reads a piece into memory: into the buffer, if it is not nil. Nodes that are slow, gone or damaged are replaced by
// others.
func (s *Store) fetch(ctx context.Context, p piece, buf *buffer) (*buffer, error) {
	if buf == nil {
		var err error
		if buf, err = s.memory.take(ctx, p.room()); err != nil {
			return nil, err
		}
	}
	r := &race{store: s, piece: p, nodes: s.fleet.sources(p.nodes), spare: buf}
	defer r.end()
	found, err := r.run(ctx)
	if err == nil || ctx.Err() != nil {
		return found, err
	}
	// It may have been moved since its nodes were looked up, and none may have answered for a moment.
	now, lookErr := s.nodesOf(ctx, p.hash)
	if lookErr != nil {
		return nil, err
	}
	r.nodes, r.next = s.fleet.sources(slices.DeleteFunc(now, r.bad)), 0
	if len(r.nodes) == 0 {
		return nil, err
	}
	return r.run(ctx)
}

// nodesOf returns the nodes that have a chunk now.
func (s *Store) nodesOf(ctx context.Context, hash Hash) ([]string, error) {
	view, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	defer view.Close()
	chunk, err := view.Chunk(hash)
	if err != nil || chunk == nil {
		return nil, err
	}
	return s.numbers.uids(view, chunk.GetNodes())
}

// race reads a piece from one node after the other, and from the next one already while a node is slow. The first one
// that has the right bytes wins.
type race struct {
	store *Store
	piece piece
	nodes []string
	// spare is a buffer that no node reads into. There is always one, or a node that reads: a race never waits for memory
	// that its own reader keeps.
	spare *buffer

	next     int
	running  map[string]context.CancelFunc
	finished chan finish
	problems []error
	// without are nodes that do not have the chunk as it was stored.
	without []string

	// over is whether nobody waits for another result.
	mu   sync.Mutex
	over bool
}

// finish is what a node has answered. The buffer has the piece if there is no error.
type finish struct {
	node string
	buf  *buffer
	err  error
}

func (r *race) run(ctx context.Context) (*buffer, error) {
	r.running = map[string]context.CancelFunc{}
	r.finished = make(chan finish, len(r.nodes))
	delay := min(max(r.store.reads.high(int(r.piece.length)), minHedge), maxHedge)
	slow := time.NewTimer(delay)
	defer slow.Stop()
	for {
		if len(r.running) == 0 && !r.start(ctx) {
			return nil, r.lost()
		}
		select {
		case f := <-r.finished:
			delete(r.running, f.node)
			if f.err == nil {
				return f.buf, nil
			}
			r.failed(ctx, f)
		case <-slow.C:
			r.hedge(ctx)
			slow.Reset(delay)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// start begins to read from the next node. It returns false if there is none, or no memory.
func (r *race) start(ctx context.Context) bool {
	if r.next == len(r.nodes) {
		return false
	}
	buf := r.spare
	r.spare = nil
	if buf == nil {
		if buf = r.store.memory.try(r.piece.room()); buf == nil {
			return false
		}
	}
	node, finished := r.nodes[r.next], r.finished
	r.next++
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	r.running[node] = cancel
	r.store.work.Go(func() {
		defer cancel()
		err := r.store.read(ctx, node, r.piece, buf)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.over {
			buf.drop()
			return
		}
		finished <- finish{node, buf, err}
	})
	return true
}

// hedge reads from another node as well. Without memory for that, it gives up the slow one.
func (r *race) hedge(ctx context.Context) {
	if r.next == len(r.nodes) || r.start(ctx) {
		return
	}
	for _, cancel := range r.running {
		cancel()
	}
}

// failed notes that a node did not have the piece, and what that says of the node.
func (r *race) failed(ctx context.Context, f finish) {
	if r.spare == nil {
		r.spare = f.buf
	} else {
		f.buf.drop()
	}
	s := r.store
	r.problems = append(r.problems, fmt.Errorf("node %s: %w", s.fleet.name(f.node), f.err))
	switch {
	case ctx.Err() != nil:
	case errors.Is(f.err, ErrChunkDamaged), errors.Is(f.err, ErrChunkMissing):
		r.without = append(r.without, f.node)
		s.damaged(damage{r.piece.hash, r.piece.size, f.node}, f.err)
	default:
		s.fleet.doubt(f.node)
	}
}

func (r *race) bad(node string) bool { return slices.Contains(r.without, node) }

// lost is the error when no node is left.
func (r *race) lost() error {
	if len(r.nodes) == 0 {
		return fmt.Errorf("%w: chunk %x is on %d nodes, and none of them is connected", ErrUnreachable, r.piece.hash[:8], len(r.piece.nodes))
	}
	return fmt.Errorf("%w: chunk %x: %w", ErrUnreachable, r.piece.hash[:8], errors.Join(r.problems...))
}

// end lets answers that still come go nowhere.
func (r *race) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for _, cancel := range r.running {
		cancel()
	}
	for len(r.finished) > 0 {
		(<-r.finished).buf.drop()
	}
	if r.spare != nil {
		r.spare.drop()
	}
}

// read reads a piece from a node into a buffer, and checks it as far as it can.
func (s *Store) read(ctx context.Context, node string, p piece, buf *buffer) error {
	s.fleet.began(node)
	began := time.Now()
	err := s.readChecked(ctx, node, p, buf)
	took := time.Since(began)
	s.fleet.ended(node, took)
	if err == nil {
		s.reads.add(int(p.length), took)
	}
	return err
}

func (s *Store) readChecked(ctx context.Context, node string, p piece, buf *buffer) error {
	offset, length := p.offset, p.length
	if p.whole() {
		offset, length = 0, p.size
	}
	data, err := s.disks.Get(ctx, node, p.hash, offset, length, buf.whole[:0])
	if err != nil {
		return err
	}
	if len(data) != int(length) {
		return fmt.Errorf("%w: it has %d bytes instead of %d", ErrChunkDamaged, len(data), length)
	}
	if p.whole() {
		if blake3.Sum256(data) != p.hash {
			return fmt.Errorf("%w: it has other bytes", ErrChunkDamaged)
		}
		data = data[p.offset : p.offset+p.length]
	}
	p.sealed.open(p.offset, data)
	buf.data = data
	return nil
}
