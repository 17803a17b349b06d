package chunks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

const (
	// bulkSize is from where a record goes to a lane for large ones, so that small ones do not wait for it.
	bulkSize = 256 << 10
	// bulkLanes is how many lanes there are for large records, beside the one for small ones.
	bulkLanes = 3
	// A batch takes at most so many records, and no more when it has so many bytes.
	batchRecords = 4096
	batchBytes   = 16 << 20
	// flushEvery is after how many bytes the index is made durable, which bounds what is replayed after a crash.
	flushEvery = 256 << 20
)

// request is a record that waits to be written.
type request struct {
	header
	head []byte // header and table
	data []byte // belongs to the caller until done has a value
	done chan error
}

var requests = sync.Pool{New: func() any {
	return &request{head: make([]byte, 0, headerSize+maxTable), done: make(chan error, 1)}
}}

// newRequest prepares a record. The caller recycles it.
func newRequest(h header, data []byte) *request {
	r := requests.Get().(*request)
	r.header, r.data = h, data
	r.head = appendHead(r.head[:0], h, data)
	return r
}

func (r *request) recycle() {
	r.data = nil
	requests.Put(r)
}

// lane appends records to a pack of its own. While it makes one batch durable, the next one gathers.
type lane struct {
	s *Store

	mu     sync.Mutex
	queue  []*request
	queued int64 // bytes that wait or are being written
	closed bool
	wake   chan struct{}

	// writing is held while a batch is written and entered into the index.
	writing sync.Mutex
	pack    *pack
	tail    int64 // where the next record goes
	synced  int64 // bytes since the index was made durable
	vectors [][]byte
	ops     []op
}

var padding [alignment]byte

// submit queues a record. Its result is sent to done.
func (l *lane) submit(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		r.done <- ErrClosed
		return
	}
	l.queue = append(l.queue, r)
	l.queued += recordSize(r.size)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// withdraw takes a record back that is not being written yet.
func (l *lane) withdraw(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.queue, r)
	if i < 0 {
		return false
	}
	l.queue = slices.Delete(l.queue, i, i+1)
	l.queued -= recordSize(r.size)
	return true
}

// wait returns when a record is durable and in the index. If the context ends first, the record is withdrawn if that is
// still possible.
func (l *lane) wait(ctx context.Context, r *request) error {
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		if l.withdraw(r) {
			return ctx.Err()
		}
		return <-r.done
	}
}

// load is how many bytes are before a new record.
func (l *lane) load() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queued
}

// take returns the next batch, nil if nothing waits.
func (l *lane) take(batch []*request) (_ []*request, closed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var size int64
	n := 0
	for n < len(l.queue) && n < batchRecords && size < batchBytes {
		size += recordSize(l.queue[n].size)
		n++
	}
	batch = append(batch[:0], l.queue[:n]...)
	l.queue = slices.Delete(l.queue, 0, n)
	return batch, l.closed
}

// run writes batches until the lane is closed and empty.
func (l *lane) run() {
	var batch []*request
	for {
		var closed bool
		batch, closed = l.take(batch)
		if len(batch) == 0 {
			if closed {
				return
			}
			<-l.wake
			continue
		}
		var size int64
		for _, r := range batch {
			size += recordSize(r.size)
		}
		err := l.write(batch)
		l.mu.Lock()
		l.queued -= size
		l.mu.Unlock()
		for _, r := range batch {
			r.done <- err
		}
		clear(batch)
	}
}

// close has run end when everything that waits is written.
func (l *lane) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.closed = true
		close(l.wake)
	}
}

// write makes a batch durable and enters it into the index.
func (l *lane) write(batch []*request) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := l.prepare(); err != nil {
		return l.s.writeError(err)
	}
	end := l.lay(batch)
	if err := l.append(batch); err != nil {
		return l.s.writeError(err)
	}
	l.s.wrote()
	l.synced += end - l.tail
	l.tail = end
	if err := l.s.commit(l.pack, end, l.ops); err != nil {
		return err
	}
	if l.synced >= flushEvery {
		l.synced = 0
		if _, err := l.s.index.beginFlush(); err != nil {
			l.s.logger.Warn("the index of chunks is not written", "error", err)
		}
	}
	return nil
}

// lay places the records of a batch behind each other.
func (l *lane) lay(batch []*request) (end int64) {
	l.vectors, l.ops = l.vectors[:0], l.ops[:0]
	at := l.tail
	for i, r := range batch {
		place(r.head, l.pack.marker, at, i == 0)
		l.vectors = append(l.vectors, r.head)
		if len(r.data) > 0 {
			l.vectors = append(l.vectors, r.data)
		}
		size := recordSize(r.size)
		if rest := size - int64(len(r.head)) - int64(len(r.data)); rest > 0 {
			l.vectors = append(l.vectors, padding[:rest])
		}
		l.ops = append(l.ops, op{r.header, location{pack: l.pack.id, size: r.size, offset: at}})
		at += size
	}
	return at
}

// append writes the batch. If that fails, the pack ends where it did before.
func (l *lane) append(batch []*request) error {
	err := l.pack.write(l.vectors, l.tail)
	if isFull(err) && l.small() && l.s.room.giveUpBallast() {
		l.lay(batch) // write has consumed a part of it
		err = l.pack.write(l.vectors, l.tail)
	}
	if err == nil {
		if err = l.pack.sync(); err == nil {
			return nil
		}
		// What the kernel could not write is lost, and later calls would not say so.
		defer l.drop()
	} else if !isFull(err) {
		defer l.drop()
	}
	if cut := l.pack.file.Truncate(l.tail); cut != nil {
		l.drop()
		return fmt.Errorf("%w, and what was written of it cannot be removed: %w", err, cut)
	}
	return err
}

// small is whether a batch deletes or stamps chunks only, which must work on a full disk.
func (l *lane) small() bool {
	return !slices.ContainsFunc(l.ops, func(o op) bool { return o.kind == kindChunk })
}

// prepare has a pack with room.
func (l *lane) prepare() error {
	if l.pack != nil && l.tail < l.s.options.PackSize {
		return nil
	}
	if l.pack != nil {
		l.seal()
	}
	p, err := l.s.newPack()
	if err != nil {
		return err
	}
	l.use(p)
	return nil
}

func (l *lane) use(p *pack) {
	p.open.Store(true)
	l.pack, l.tail = p, p.state.end
}

// drop leaves a pack in which nothing can be written any more.
func (l *lane) drop() {
	if l.pack != nil {
		l.pack.open.Store(false)
		l.pack = nil
	}
}

// seal ends a pack. Its last batch need not be verified again then; so it does not matter if this fails.
func (l *lane) seal() {
	h := header{kind: kindSeal, seq: l.s.seq.Add(1)}
	head := appendHead(nil, h, nil)
	place(head, l.pack.marker, l.tail, true)
	if err := errors.Join(l.pack.write([][]byte{head}, l.tail), l.pack.sync()); err == nil {
		end := l.tail + recordSize(0)
		err = l.s.commit(l.pack, end, []op{{h, location{pack: l.pack.id, offset: l.tail}}})
		if err != nil {
			l.s.logger.Warn("a pack of chunks is full, but the index does not know", "pack", l.pack.id, "error", err)
		}
	}
	l.drop()
	l.s.wakeReclaim()
}
