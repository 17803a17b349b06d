package consensus

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// Snapshots are taken after a number of entries, which suits small ones. A log of large entries would grow by gigabytes
// until then. So a snapshot is also taken when the log has grown by maxBulk, or by twice the size of the last snapshot
// if that is more: then snapshots are the smaller part of all writing. About maxBulk of the log is kept for servers
// that lag behind.
const maxBulk = 256 << 20

// minTrailing is how many entries are kept however large they are.
const minTrailing = 64

// bulk measures how much the log has grown since the last snapshot.
type bulk struct {
	max  int64
	full chan struct{} // has a token when it is time for a snapshot

	mu      sync.Mutex
	bytes   int64
	entries int64
	saved   int64 // size of the last snapshot
}

func newBulk() *bulk { return &bulk{max: maxBulk, full: make(chan struct{}, 1)} }

func (b *bulk) add(entries []*raft.Log) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, entry := range entries {
		b.bytes += int64(len(entry.Data))
	}
	b.entries += int64(len(entries))
	if b.bytes < max(b.max, 2*b.saved) {
		return
	}
	select {
	case b.full <- struct{}{}:
	default:
	}
}

// began restarts the count, because a snapshot of everything so far is being taken.
func (b *bulk) began() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bytes, b.entries = 0, 0
}

// trailing is how many of the counted entries may be kept.
func (b *bulk) trailing() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.entries
	if b.bytes > b.max {
		kept = b.entries * b.max / b.bytes
	}
	return uint64(max(kept, minTrailing))
}

// took remembers the size of a snapshot.
func (b *bulk) took(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved = size
}

// bulkyLog is a log that counts what is written to it.
type bulkyLog struct {
	recentLog
	bulk *bulk
}

// StoreLog implements raft.LogStore.
func (l bulkyLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l bulkyLog) StoreLogs(entries []*raft.Log) error {
	if err := l.recentLog.StoreLogs(entries); err != nil {
		return err
	}
	l.bulk.add(entries)
	return nil
}

// shorten takes a snapshot whenever the log has grown too large, until this server stops.
func (g *Group) shorten() {
	for {
		select {
		case <-g.bulk.full:
		case <-g.done:
			return
		}
		usual := g.raft.ReloadableConfig()
		short := usual
		short.TrailingLogs = min(usual.TrailingLogs, g.bulk.trailing())
		if err := g.raft.ReloadConfig(short); err != nil {
			g.logger.Error("the log stays as long as it is", "error", err)
		}
		if err := g.raft.Snapshot().Error(); err != nil { // raft logs it
			g.bulk.began() // the next one is due after as much growth again
		}
		if err := g.raft.ReloadConfig(usual); err != nil {
			g.logger.Error("the log stays as short as it is", "error", err)
		}
	}
}

// countedWriter counts what is written.
type countedWriter struct {
	io.Writer
	written int64
}

func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.written += int64(n)
	return n, err
}
