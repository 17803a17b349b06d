package relay

import (
	"io"
	"sync"
)

// maxQueued bounds what waits for a slow connection, in bytes. More would only add delay: senders slow down when
// packets are dropped.
const maxQueued = 1 << 20

// queue collects frames for one connection. Frames that arrive while the connection is being written to go out
// together, in one large write. It holds two buffers in turn and allocates nothing per frame.
type queue struct {
	mu      sync.Mutex
	filled  sync.Cond
	waiting []byte
	spare   []byte
	closed  bool
}

func newQueue() *queue {
	q := &queue{}
	q.filled.L = &q.mu
	return q
}

// put adds a frame and reports whether there was room for it.
func (q *queue) put(f frame) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.waiting)+headerSize+len(f.packet) > maxQueued {
		return false
	}
	if len(q.waiting) == 0 {
		q.filled.Signal()
	}
	q.waiting = appendFrame(q.waiting, f)
	return true
}

// copyTo writes frames to w until the queue is closed or a write fails.
func (q *queue) copyTo(w io.Writer) error {
	for {
		batch, ok := q.take()
		if !ok {
			return nil
		}
		if _, err := w.Write(batch); err != nil {
			return err
		}
		q.giveBack(batch)
	}
}

func (q *queue) take() (batch []byte, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed {
		q.filled.Wait()
	}
	if q.closed {
		return nil, false
	}
	batch, q.waiting = q.waiting, q.spare[:0]
	q.spare = nil
	return batch, true
}

// keptBuffer is the size of a buffer that an idle connection may keep.
const keptBuffer = 16 << 10

func (q *queue) giveBack(batch []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 || cap(batch) <= keptBuffer { // a busy connection needs it again at once
		q.spare = batch[:0]
	}
	if len(q.waiting) == 0 && cap(q.waiting) > keptBuffer {
		q.waiting = nil
	}
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}
