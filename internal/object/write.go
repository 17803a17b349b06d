package object

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	// writeTimeout ends a write to one node. A chunk takes half of it over a line of 2 Mbit/s.
	writeTimeout = 30 * time.Second
	// minStall and maxStall bound after how long another node gets the chunk of one that does not answer. A disk that
	// is busy may need seconds for an fsync.
	minStall, maxStall = 2 * time.Second, 10 * time.Second
)

// landing is a chunk on its way to nodes.
type landing struct {
	block *objectv1.Block
	hash  Hash

	mu sync.Mutex
	// nodes are the numbers of those that have it. A chunk that was stored before has none: the names know where it is.
	nodes []uint32
	// named is whether an operation with nodes was proposed, late who came after that, and committed whether it was
	// applied.
	named, committed bool
	late             []uint32
}

func newLanding(hash Hash, size uint32, nonce []byte) *landing {
	return &landing{hash: hash, block: &objectv1.Block{Hash: hash[:], Size: size, Nonce: nonce}}
}

// arrived notes that a node has the chunk.
func (s *Store) arrived(l *landing, number uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.named:
		l.nodes = append(l.nodes, number)
	case !l.committed:
		l.late = append(l.late, number)
	default:
		s.locate(&objectv1.Located{Hash: l.block.GetHash(), Add: []uint32{number}})
	}
}

// stored is the chunk with the nodes that have it so far, for an operation.
func (l *landing) stored() *objectv1.StoredChunk {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nodes = append(l.nodes, l.late...)
	l.late, l.named = nil, true
	return &objectv1.StoredChunk{Hash: l.block.GetHash(), Size: l.block.GetSize(), Nodes: l.nodes}
}

// landed says that the operation was applied: nodes that come later are reported.
func (s *Store) landed(l *landing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed = true
	if len(l.late) > 0 {
		s.locate(&objectv1.Located{Hash: l.block.GetHash(), Add: l.late})
	}
	l.late = nil
}

// land stores what is in a buffer, which it encrypts first if there is a key, and returns when enough nodes have it. Other
// nodes go on in the background.
func (s *Store) land(ctx context.Context, buf *buffer, key *Key, copies int, epoch uint64) (*landing, error) {
	nonce := key.encrypt(buf)
	l := newLanding(blake3.Sum256(buf.data), uint32(len(buf.data)), nonce)
	return l, s.write(ctx, l, buf, copies, epoch)
}

// write is one chunk being written to several nodes.
type write struct {
	store  *Store
	ctx    context.Context
	chunk  *landing
	buf    *buffer
	epoch  uint64
	copies int
	places places
	// next is the first node that was not asked, and waiting are those that have not answered.
	next     int
	waiting  map[string]bool
	stored   int
	problems []error
	outcomes chan outcome
}

type outcome struct {
	node string
	err  error
}

func (s *Store) write(ctx context.Context, l *landing, buf *buffer, copies int, epoch uint64) error {
	w := &write{
		store: s, chunk: l, buf: buf, epoch: epoch, copies: copies,
		places: s.fleet.place(l.hash, len(buf.data), copies), waiting: map[string]bool{},
	}
	able := len(w.places.order)
	if why := w.places.never; why != "" {
		return fmt.Errorf("%w: %s", ErrNoStorage, why)
	}
	if need := quorum(copies, w.places.existing, able); able < need {
		return fmt.Errorf("%w: %d are needed, and %s", ErrNoQuorum, need, w.places.why())
	}
	w.outcomes = make(chan outcome, able)
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithTimeout(s.background, writeTimeout)
	detach := context.AfterFunc(ctx, cancel)
	for range min(copies, able) {
		w.start()
	}
	err := w.wait(ctx)
	detach()
	if err != nil || len(w.waiting) == 0 {
		cancel()
		return err
	}
	w.linger(cancel)
	return nil
}

// start has the next node store the chunk.
func (w *write) start() {
	if w.next == len(w.places.order) {
		return
	}
	node := w.places.order[w.next]
	w.next++
	w.waiting[node] = true
	w.buf.keep()
	w.store.work.Go(func() {
		defer w.buf.drop()
		w.outcomes <- outcome{node, w.to(node)}
	})
}

// to stores the chunk on a node.
func (w *write) to(node string) error {
	s := w.store
	number, err := s.numberOf(w.ctx, node)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.disks.Put(w.ctx, node, w.chunk.hash, w.buf.data, w.epoch); err != nil {
		return err
	}
	s.writes.add(len(w.buf.data), time.Since(began))
	s.arrived(w.chunk, number)
	return nil
}

// wait returns when enough nodes have the chunk. Each node that fails or stalls is replaced by the next one.
func (w *write) wait(ctx context.Context) error {
	patience := min(max(3*w.store.writes.high(len(w.buf.data)), minStall), maxStall)
	stalled := time.NewTimer(patience)
	defer stalled.Stop()
	for w.stored < quorum(w.copies, w.places.existing, len(w.places.order)) {
		if len(w.waiting) == 0 {
			return w.verdict()
		}
		select {
		case o := <-w.outcomes:
			w.take(o)
			if o.err != nil {
				w.start()
			}
		case <-stalled.C:
			if w.next == len(w.places.order) && w.enough() {
				return nil
			}
			for node := range w.waiting {
				w.store.fleet.doubt(node)
			}
			w.start()
			stalled.Reset(patience)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// take notes the answer of a node.
func (w *write) take(o outcome) {
	delete(w.waiting, o.node)
	switch {
	case o.err == nil:
		w.stored++
		return
	case errors.Is(o.err, ErrDiskFull):
		w.store.fleet.filled(o.node)
	case w.ctx.Err() == nil || errors.Is(w.ctx.Err(), context.DeadlineExceeded):
		w.store.fleet.doubt(o.node)
	}
	w.problems = append(w.problems, fmt.Errorf("node %s: %w", w.store.fleet.name(o.node), o.err))
}

// enough is whether the nodes that have the chunk would be a quorum if there were no others that can store it.
func (w *write) enough() bool {
	return w.stored > 0 && w.stored >= quorum(w.copies, w.places.existing, w.stored)
}

// verdict is what a write has come to when no node is left.
func (w *write) verdict() error {
	if w.enough() {
		return nil
	}
	need := quorum(w.copies, w.places.existing, len(w.places.order))
	return fmt.Errorf("%w: %d have it and %d are needed: %w", ErrNoQuorum, w.stored, need, errors.Join(w.problems...))
}

// linger lets the other nodes go on. Their memory is bounded: beyond that, the request waits for them a little, and then
// gives them up. The cluster repairs what has too few copies.
func (w *write) linger(cancel context.CancelFunc) {
	s, size := w.store, int64(len(w.buf.whole))
	if s.late.TryAcquire(size) {
		s.work.Go(func() {
			defer cancel()
			defer s.late.Release(size)
			for len(w.waiting) > 0 {
				w.take(<-w.outcomes)
			}
		})
		return
	}
	defer cancel()
	patience := time.NewTimer(minStall)
	defer patience.Stop()
	for len(w.waiting) > 0 {
		select {
		case o := <-w.outcomes:
			w.take(o)
		case <-patience.C:
			return
		}
	}
}
