package object

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// memory bounds the content that all requests together have in memory, and keeps buffers for the next request.
//
// A request may wait for a buffer while it holds others only if those come back without it: writes to nodes end by
// themselves. A client that is slow keeps its buffers, so buffers become smaller when memory is short, and many slow
// clients share what is left.
type memory struct {
	total    int64
	used     atomic.Int64
	bounded  *semaphore.Weighted
	reusable [len(classes)]sync.Pool
}

// classes are the sizes of buffers.
var classes = [...]int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, ChunkSize}

func newMemory(total int64) *memory {
	return &memory{total: total, bounded: semaphore.NewWeighted(total)}
}

// chunk is how large a chunk should be now.
func (m *memory) chunk() int {
	switch free := m.total - m.used.Load(); {
	case free >= m.total/2:
		return ChunkSize
	case free >= m.total/4:
		return ChunkSize / 4
	default:
		return ChunkSize / 16
	}
}

// take returns a buffer for size bytes, and waits until there is memory for it.
func (m *memory) take(ctx context.Context, size int) (*buffer, error) {
	class := classOf(size)
	if err := m.bounded.Acquire(ctx, int64(classes[class])); err != nil {
		return nil, err
	}
	return m.buffer(class), nil
}

// ahead returns a buffer for size bytes that are not needed yet, unless memory is short.
func (m *memory) ahead(size int) *buffer {
	if m.total-m.used.Load()-int64(classes[classOf(size)]) < m.total/4 {
		return nil
	}
	return m.try(size)
}

// try returns a buffer for size bytes, or nil if there is no memory for it now.
func (m *memory) try(size int) *buffer {
	class := classOf(size)
	if !m.bounded.TryAcquire(int64(classes[class])) {
		return nil
	}
	return m.buffer(class)
}

func (m *memory) buffer(class int) *buffer {
	m.used.Add(int64(classes[class]))
	b, reused := m.reusable[class].Get().(*buffer)
	if !reused {
		b = &buffer{memory: m, class: class, whole: make([]byte, classes[class])}
	}
	b.holders.Store(1)
	b.data = b.whole[:0]
	return b
}

func classOf(size int) int {
	for class, room := range classes {
		if size <= room {
			return class
		}
	}
	return len(classes) - 1
}

// buffer is memory that several goroutines hold. The last one to drop it gives it back.
type buffer struct {
	// data is what is in the buffer.
	data    []byte
	whole   []byte
	memory  *memory
	class   int
	holders atomic.Int32
}

func (b *buffer) keep() { b.holders.Add(1) }

func (b *buffer) drop() {
	if b.holders.Add(-1) > 0 {
		return
	}
	size := int64(len(b.whole))
	b.data = nil
	b.memory.reusable[b.class].Put(b)
	b.memory.used.Add(-size)
	b.memory.bounded.Release(size)
}
