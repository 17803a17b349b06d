package object

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"hash"
	"io"
	"sync"
	"time"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
)

const (
	// inFlight is how many chunks of one body are written at once.
	inFlight = 2
	// stageAfter is how old the first chunk that nothing refers to may become. Epochs last longer than that, and a chunk
	// is safe from the collection of garbage for one epoch more.
	stageAfter = 4 * time.Minute
	// stagedFor is how long lists that no version has adopted stay: the longest that one put may take.
	stagedFor = 24 * time.Hour
	// epochAttempts is how often chunks are written again because their epoch is over.
	epochAttempts = 3
)

// intake is content on its way into the store: chunks are written to nodes, and long lists of blocks are staged, so that
// something refers to them.
type intake struct {
	store  *Store
	target *objectv1.Target
	// key encrypts the content; nil if it stays plain.
	key *Key
	// epoch is that of the oldest chunk in pending, and since the time when it was written.
	epoch   uint64
	since   time.Time
	pending []*landing
	size    int64

	// list has the lists that were staged, with the bytes of their blocks.
	list   []byte
	lists  uint32
	staged int64
	expire int64
	// identity is the digest of all digests of blocks that were staged.
	identity hash.Hash

	slots   chan struct{}
	writing sync.WaitGroup
	mu      sync.Mutex
	err     error
	cancel  context.CancelFunc
}

// intake begins with content for a bucket. The caller ends it.
func (s *Store) intake(ctx context.Context, b Bucket, e *objectv1.Encryption) (*intake, context.Context, error) {
	key, err := b.key(ctx, e)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	return &intake{
		store: s, target: b.target(), key: key, identity: md5.New(), slots: make(chan struct{}, inFlight), cancel: cancel,
		expire: s.now().Add(stagedFor).UnixNano(),
	}, ctx, nil
}

// end stops writes that are still going on, and waits for those who count them.
func (in *intake) end() {
	in.cancel()
	in.writing.Wait()
}

// body takes a body to its end, and returns its MD5. A size of -1 is not known.
func (in *intake) body(ctx context.Context, body io.Reader, size int64) ([]byte, error) {
	if body == nil {
		body = bytes.NewReader(nil)
	}
	digest := &digest{hash: md5.New()}
	defer digest.end()
	for {
		buf, last, err := in.chunk(ctx, body, size)
		if err != nil {
			return nil, err
		}
		if in.key != nil {
			digest.hash.Write(buf.data) // now, because it is encrypted in place
		}
		if len(buf.data) > 0 {
			if err := in.write(ctx, buf); err != nil {
				buf.drop()
				return nil, err
			}
		}
		switch {
		case in.key != nil:
			buf.drop()
		case last:
			digest.last(buf)
		default:
			digest.add(buf)
		}
		if last {
			break
		}
	}
	if size >= 0 && in.size != size {
		return nil, fmt.Errorf("%w: %d bytes were announced", ErrIncomplete, size)
	}
	if err := in.wait(); err != nil {
		return nil, err
	}
	return digest.hash.Sum(nil), nil
}

// chunk reads the next chunk of a body, and whether it is the last one. The end of a body of known size is read as well:
// its reader may check a signature there.
func (in *intake) chunk(ctx context.Context, body io.Reader, size int64) (buf *buffer, last bool, err error) {
	limit := in.store.memory.chunk()
	if size >= 0 {
		limit = int(min(int64(limit), size-in.size))
	}
	if buf, err = in.store.memory.take(ctx, limit); err != nil {
		return nil, false, in.cause(err)
	}
	n, err := fill(body, buf.whole[:limit])
	buf.data = buf.whole[:n]
	in.size += int64(n)
	if err == nil && in.size == size {
		var more [1]byte
		n, err = fill(body, more[:])
		in.size += int64(n) // one byte more is as wrong as many
		last = true
	}
	if err != nil && !errors.Is(err, io.EOF) {
		buf.drop()
		return nil, false, fmt.Errorf("reading the content: %w", err)
	}
	return buf, last || err != nil, nil
}

// fill reads until p is full, or until the error that is returned. Unlike io.ReadFull it does not make io.EOF look like
// the error of a body that was cut off.
func fill(body io.Reader, p []byte) (int, error) {
	total := 0
	for total < len(p) {
		n, err := body.Read(p[total:])
		total += n
		if err != nil && total < len(p) {
			return total, err
		}
	}
	return total, nil
}

// write has the next chunk written while the caller goes on. The caller keeps its hold of the buffer, but what is in it
// may be encrypted at any moment.
func (in *intake) write(ctx context.Context, buf *buffer) error {
	if err := in.prepare(ctx); err != nil {
		return err
	}
	select {
	case in.slots <- struct{}{}:
	case <-ctx.Done():
		return in.cause(ctx.Err())
	}
	in.mu.Lock()
	place, epoch := len(in.pending), in.epoch
	in.pending = append(in.pending, nil)
	in.mu.Unlock()
	buf.keep()
	in.writing.Go(func() {
		defer func() { <-in.slots }()
		defer buf.drop()
		l, err := in.store.land(ctx, buf, in.key, int(in.target.GetCopies()), epoch)
		in.mu.Lock()
		defer in.mu.Unlock()
		if err != nil {
			if in.err == nil {
				in.err = err
			}
			in.cancel()
			return
		}
		in.pending[place] = l
	})
	return nil
}

// prepare makes room for another block, and finds out its epoch.
func (in *intake) prepare(ctx context.Context) error {
	if len(in.pending) >= listBlocks || len(in.pending) > 0 && time.Since(in.since) > stageAfter {
		if err := in.stage(ctx); err != nil {
			return err
		}
	}
	if len(in.pending) > 0 {
		return nil
	}
	in.since = time.Now()
	var err error
	in.epoch, err = in.store.epochNow(ctx)
	return err
}

// refer adds a block that is stored already and was referred to in an epoch.
func (in *intake) refer(ctx context.Context, block *objectv1.Block, epoch uint64) error {
	if len(in.pending) >= listBlocks {
		if err := in.stage(ctx); err != nil {
			return err
		}
	}
	if len(in.pending) == 0 {
		in.since, in.epoch = time.Now(), epoch
	}
	in.epoch = min(in.epoch, epoch)
	in.mu.Lock() // chunks before it may still be on their way
	in.pending = append(in.pending, newLanding(Hash(block.GetHash()), block.GetSize(), block.GetNonce()))
	in.mu.Unlock()
	in.size += int64(block.GetSize())
	return nil
}

// wait returns when all chunks have their quorum.
func (in *intake) wait() error {
	in.writing.Wait()
	return in.cause(nil)
}

// cause is what stopped the writes, or err if nothing did.
func (in *intake) cause(err error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err != nil {
		return in.err
	}
	return err
}

// stage gives the blocks so far a list of their own.
func (in *intake) stage(ctx context.Context) error {
	if err := in.wait(); err != nil {
		return err
	}
	if in.list == nil {
		var err error
		if in.list, err = newID(); err != nil {
			return err
		}
	}
	op := &objectv1.StageBlocks{
		Target: in.target, List: in.list, Number: in.lists, Blocks: in.blocks(), ExpireTime: in.expire,
	}
	_, err := in.commit(ctx, func() *objectv1.Operation {
		op.Chunks, op.Epoch = in.chunks(), in.epoch
		return &objectv1.Operation{What: &objectv1.Operation_StageBlocks{StageBlocks: op}}
	}, func(op *objectv1.Operation) (*objectv1.Result, error) { return in.store.proposeAgain(ctx, op) })
	if err != nil {
		return fmt.Errorf("staging a list of blocks: %w", err)
	}
	for _, block := range op.GetBlocks() {
		in.staged += int64(block.GetSize())
	}
	in.lists++
	in.identify()
	in.pending = nil
	return nil
}

func (in *intake) identify() {
	for _, l := range in.pending {
		in.identity.Write(l.hash[:])
	}
}

// content is what the blocks have become: a few blocks or a segment.
func (in *intake) content(ctx context.Context) ([]*objectv1.Block, []*objectv1.Segment, error) {
	if in.lists == 0 && len(in.pending) <= inlineBlocks {
		return in.blocks(), nil, nil
	}
	if len(in.pending) > 0 {
		if err := in.stage(ctx); err != nil {
			return nil, nil, err
		}
	}
	return nil, []*objectv1.Segment{{List: in.list, Lists: in.lists, Size: in.staged}}, nil
}

func (in *intake) blocks() []*objectv1.Block {
	blocks := make([]*objectv1.Block, len(in.pending))
	for i, l := range in.pending {
		blocks[i] = l.block
	}
	return blocks
}

// chunks are the chunks of the blocks that nothing refers to yet, each once.
func (in *intake) chunks() []*objectv1.StoredChunk {
	index := make(map[Hash]*objectv1.StoredChunk, len(in.pending))
	chunks := make([]*objectv1.StoredChunk, 0, len(in.pending))
	for _, l := range in.pending {
		stored := l.stored()
		if first := index[l.hash]; first != nil {
			first.Nodes = append(first.Nodes, stored.GetNodes()...)
			continue
		}
		index[l.hash] = stored
		chunks = append(chunks, stored)
	}
	return chunks
}

// tag identifies content whose MD5 is not known: it depends on the stored blocks alone, so equal content that is encrypted
// twice has two tags. It is called once, before content.
func (in *intake) tag() []byte {
	in.identify()
	return in.identity.Sum(nil)
}

// commit proposes an operation that refers to the pending chunks. If their epoch is over, they are written again.
func (in *intake) commit(ctx context.Context, op func() *objectv1.Operation, propose func(*objectv1.Operation) (*objectv1.Result, error)) (*objectv1.Result, error) {
	for attempt := 1; ; attempt++ {
		result, err := propose(op())
		if err != nil {
			return nil, err
		}
		if result.GetRefused() == "epoch" && attempt < epochAttempts {
			if err := in.renew(ctx); err != nil {
				return nil, fmt.Errorf("the content was stored too long ago, and storing it again: %w", err)
			}
			continue
		}
		if err := refusal(result, in.size); err != nil {
			return nil, err
		}
		for _, l := range in.pending {
			in.store.landed(l)
		}
		return result, nil
	}
}

// renew makes the pending chunks as safe as if they had just been written.
func (in *intake) renew(ctx context.Context) error {
	s := in.store
	s.epochPassed()
	epoch, err := s.epochNow(ctx)
	if err != nil {
		return err
	}
	for _, l := range in.pending {
		if err := s.renew(ctx, l, int(in.target.GetCopies()), epoch); err != nil {
			return err
		}
	}
	in.epoch, in.since = epoch, time.Now()
	return nil
}
