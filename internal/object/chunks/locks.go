package chunks

import (
	"context"
	"sync"
)

// locks lets one operation at a time change a chunk.
type locks struct {
	mu   sync.Mutex
	held map[Hash]chan struct{} // is closed when the chunk is free
}

// lock waits until no other operation changes the chunk.
func (l *locks) lock(ctx context.Context, hash Hash) error {
	for {
		l.mu.Lock()
		busy, taken := l.held[hash]
		if !taken {
			l.held[hash] = make(chan struct{})
			l.mu.Unlock()
			return nil
		}
		l.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *locks) unlock(hash Hash) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[hash])
	delete(l.held, hash)
}
