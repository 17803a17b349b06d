package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/object/names"
)

// ahead is how many pieces are read before the client wants them.
const ahead = 2

// Reader reads the content of one version, even while it is overwritten or deleted: the chunks of what is gone stay for
// two epochs at least.
type Reader struct {
	store   *Store
	version *objectv1.Version
	// key decrypts the content; nil if it is not encrypted.
	key *Key
	// few has the blocks of a version that has them itself. Otherwise view keeps the lists.
	few  []foundBlock
	view *names.View
}

// foundBlock is a block at its offset, and the nodes that have it.
type foundBlock struct {
	names.Placed
	nodes []string
}

// reader takes over the view.
func (s *Store) reader(view *names.View, v *objectv1.Version, key *Key) (*Reader, error) {
	r := &Reader{store: s, version: v, key: key, view: view}
	if len(v.GetSegments()) > 0 {
		return r, nil
	}
	for block, err := range r.found(0) {
		if err != nil {
			return nil, err
		}
		r.few = append(r.few, block)
	}
	r.view = nil
	view.Close()
	return r, nil
}

// found yields the blocks from an offset on, from the view.
func (r *Reader) found(offset int64) iter.Seq2[foundBlock, error] {
	return func(yield func(foundBlock, error) bool) {
		for placed, err := range r.view.Blocks(r.version, offset) {
			found := foundBlock{Placed: placed}
			if err == nil {
				found.nodes, err = r.nodesOf(Hash(placed.Block.GetHash()))
			}
			if !yield(found, err) || err != nil {
				return
			}
		}
	}
}

func (r *Reader) nodesOf(hash Hash) ([]string, error) {
	chunk, err := r.view.Chunk(hash)
	if err != nil {
		return nil, fmt.Errorf("reading where chunk %x is: %w", hash[:8], err)
	}
	return r.store.numbers.uids(r.view, chunk.GetNodes())
}

// blocks yields the blocks from an offset on.
func (r *Reader) blocks(offset int64) iter.Seq2[foundBlock, error] {
	if r.view != nil {
		return r.found(offset)
	}
	return func(yield func(foundBlock, error) bool) {
		for _, block := range r.few {
			if block.Offset+int64(block.Block.GetSize()) <= offset {
				continue
			}
			if !yield(block, nil) {
				return
			}
		}
	}
}

// Close gives up the reader. Ranges must have been closed before.
func (r *Reader) Close() {
	if r.view != nil {
		r.view.Close()
	}
}

// ReadRange reads length bytes from an offset; up to the end if length is negative. The result is an io.WriterTo as
// well, which copies less. Several ranges may be read one after the other, or at once.
func (r *Reader) ReadRange(ctx context.Context, offset, length int64) io.ReadCloser {
	size := r.version.GetSize()
	end := size
	if length >= 0 && length <= size-offset {
		end = offset + length
	}
	ctx, cancel := context.WithCancel(ctx)
	g := &rangeReader{reader: r, ctx: ctx, cancel: cancel, at: offset, end: end}
	if offset < 0 || offset > size {
		g.err = ErrBadRange
		g.at = end
		return g
	}
	g.pull, g.stop = iter.Pull2(r.blocks(offset))
	return g
}

// rangeReader reads bytes in order, and the next pieces meanwhile.
type rangeReader struct {
	reader *Reader
	ctx    context.Context
	cancel context.CancelFunc
	pull   func() (foundBlock, error, bool)
	stop   func()
	// at is the first byte that is not planned, end the first that is not wanted, and block what at is in.
	at, end int64
	block   foundBlock
	// coming are the pieces that are being read.
	coming []*arrival
	// rest is what is left of current.
	current *buffer
	rest    []byte
	err     error
}

// Read implements io.Reader.
func (g *rangeReader) Read(p []byte) (int, error) {
	for len(g.rest) == 0 {
		if err := g.advance(); err != nil {
			return 0, err
		}
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

// WriteTo implements io.WriterTo.
func (g *rangeReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		for len(g.rest) > 0 {
			n, err := w.Write(g.rest)
			total += int64(n)
			g.rest = g.rest[n:]
			if err != nil {
				return total, err
			}
		}
		if err := g.advance(); errors.Is(err, io.EOF) {
			return total, nil
		} else if err != nil {
			return total, err
		}
	}
}

// Close gives up the range.
func (g *rangeReader) Close() error {
	g.cancel()
	if g.stop != nil {
		g.stop()
	}
	for _, a := range g.coming {
		a.abandon()
	}
	g.coming, g.err = nil, errors.New("the range was closed")
	g.release()
	return nil
}

func (g *rangeReader) release() {
	if g.current != nil {
		g.current.drop()
	}
	g.current, g.rest = nil, nil
}

// advance makes the next piece the current one; io.EOF after the last one.
func (g *rangeReader) advance() error {
	g.release()
	if g.err != nil {
		return g.err
	}
	if g.err = g.begin(); g.err != nil {
		return g.err
	}
	first := g.coming[0]
	g.coming = g.coming[1:]
	if g.current, g.err = first.wait(); g.err != nil {
		return g.err
	}
	g.rest = g.current.data
	if err := g.begin(); err != nil && !errors.Is(err, io.EOF) {
		g.err = err // the bytes at hand come first
	}
	return nil
}

// begin has the next pieces read: the first one in any case, more if there is memory for them.
func (g *rangeReader) begin() error {
	for len(g.coming) < ahead {
		p, err := g.plan()
		if errors.Is(err, io.EOF) && len(g.coming) > 0 {
			return nil
		}
		if err != nil {
			return err
		}
		var buf *buffer
		if len(g.coming) == 0 && g.current == nil {
			buf, err = g.reader.store.memory.take(g.ctx, p.room())
			if err != nil {
				return err
			}
		} else if buf = g.reader.store.memory.ahead(p.room()); buf == nil {
			return nil
		}
		g.at += int64(p.length)
		g.coming = append(g.coming, g.reader.store.arrive(g.ctx, p, buf))
	}
	return nil
}

// plan is the next piece; io.EOF after the last one.
func (g *rangeReader) plan() (piece, error) {
	if g.at >= g.end {
		return piece{}, io.EOF
	}
	for g.block.Block == nil || g.at >= g.block.Offset+int64(g.block.Block.GetSize()) {
		block, err, more := g.pull()
		if err != nil {
			return piece{}, fmt.Errorf("reading the blocks of the object: %w", err)
		}
		if !more {
			return piece{}, fmt.Errorf("the object has no blocks from byte %d on: %w", g.at, io.ErrUnexpectedEOF)
		}
		g.block = block
	}
	b := g.block.Block
	sealed, err := sealingOf(b, g.reader.key)
	if err != nil {
		return piece{}, err
	}
	offset := g.at - g.block.Offset
	length := min(int64(b.GetSize())-offset, g.end-g.at, int64(g.reader.store.memory.chunk()))
	return piece{
		hash: Hash(b.GetHash()), size: b.GetSize(), offset: uint32(offset), length: uint32(length), nodes: g.block.nodes, sealed: sealed,
	}, nil
}

// arrival is a piece that is being read.
type arrival struct {
	done chan struct{}
	buf  *buffer
	err  error

	mu        sync.Mutex
	abandoned bool
}

func (s *Store) arrive(ctx context.Context, p piece, first *buffer) *arrival {
	a := &arrival{done: make(chan struct{})}
	s.work.Go(func() {
		defer close(a.done)
		buf, err := s.fetch(ctx, p, first)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.abandoned && buf != nil {
			buf.drop()
			return
		}
		a.buf, a.err = buf, err
	})
	return a
}

// wait returns the piece. The caller drops it.
func (a *arrival) wait() (*buffer, error) {
	<-a.done
	return a.buf, a.err
}

// abandon gives up a piece that nobody waits for.
func (a *arrival) abandon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.abandoned = true
	if a.buf != nil {
		a.buf.drop()
		a.buf = nil
	}
}
