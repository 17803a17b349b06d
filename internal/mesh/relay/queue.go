package relay

import (
	"io"
	"sync"
)

// maxQueued bounds what waits for a slow connection, in bytes. More would only add delay: senders slow down when
// packets are dropped.
const maxQueued = 1 << 20

// queue collects frames for one connection. Frames that arrive while the connection is being written to go out
// together, in one large write. It allocates nothing per frame, and holds no memory while it is empty.
type queue struct {
	mu      sync.Mutex
	filled  sync.Cond
	waiting []byte // nil if there is nothing
	closed  bool
}

// buffers are those of all queues.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, 0, 64<<10)
	return &b
}}

func newQueue() *queue {
	q := &queue{}
	q.filled.L = &q.mu
	return q
}

// put adds a frame and reports whether there was room for it.
func (q *queue) put(f frame) bool {
	defer q.flush()
	return q.add(f)
}

// add adds a frame and reports whether there was room for it. The frame may wait for a flush: after the last of several
// frames, so that they go out together.
func (q *queue) add(f frame) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.addLocked(f)
}

// addAll adds packets, which begin at an offset in their buffers, and returns how many there was room for.
func (q *queue) addAll(to Address, packets [][]byte, offset int) (taken int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range packets {
		if len(b)-offset <= MaxPacket && q.addLocked(frame{kind: kindPacket, address: to, packet: b[offset:]}) {
			taken++
		}
	}
	return taken
}

func (q *queue) addLocked(f frame) bool {
	if q.closed || len(q.waiting)+headerSize+len(f.packet) > maxQueued {
		return false
	}
	if q.waiting == nil {
		q.waiting = *buffers.Get().(*[]byte)
	}
	q.waiting = appendFrame(q.waiting, f)
	return true
}

// flush lets what was added go out.
func (q *queue) flush() { q.filled.Signal() }

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
		batch = batch[:0]
		buffers.Put(&batch)
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
	batch, q.waiting = q.waiting, nil
	return batch, true
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.filled.Broadcast()
}
