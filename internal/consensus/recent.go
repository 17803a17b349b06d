package consensus

import (
	"sync"

	"github.com/hashicorp/raft"
)

// How much of the log is kept in memory: as much as servers that keep up are behind.
const (
	maxRecent     = 512
	maxRecentSize = 8 << 20
)

// recentLog keeps the newest entries in memory. Raft reads each of them again, the leader for every follower and a
// follower to apply it. Each time would be a disk read and a copy.
type recentLog struct {
	watchedLog
	recent *recent
}

// StoreLog implements raft.LogStore.
func (l recentLog) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore.
func (l recentLog) StoreLogs(entries []*raft.Log) error {
	if err := l.watchedLog.StoreLogs(entries); err != nil {
		return err
	}
	l.recent.add(entries)
	return nil
}

// GetLog implements raft.LogStore.
func (l recentLog) GetLog(index uint64, entry *raft.Log) error {
	if l.recent.get(index, entry) {
		return nil
	}
	return l.watchedLog.GetLog(index, entry)
}

// DeleteRange implements raft.LogStore.
func (l recentLog) DeleteRange(first, last uint64) error {
	l.recent.forget() // rare, at either end
	return l.watchedLog.DeleteRange(first, last)
}

// recent are consecutive entries.
type recent struct {
	mu      sync.RWMutex
	entries []raft.Log
	size    int
}

func (r *recent) add(entries []*raft.Log) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, entry := range entries {
		if n := len(r.entries); n > 0 && r.entries[n-1].Index+1 != entry.Index {
			r.entries, r.size = nil, 0
		}
		r.entries = append(r.entries, *entry)
		r.size += len(entry.Data)
	}
	drop := 0
	for drop < len(r.entries) && (len(r.entries)-drop > maxRecent || r.size > maxRecentSize) {
		r.size -= len(r.entries[drop].Data)
		drop++
	}
	clear(r.entries[:drop]) // until append moves the rest to another place
	r.entries = r.entries[drop:]
}

// get reports whether an entry is there.
func (r *recent) get(index uint64, entry *raft.Log) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.entries) == 0 || index < r.entries[0].Index || index-r.entries[0].Index >= uint64(len(r.entries)) {
		return false
	}
	*entry = r.entries[index-r.entries[0].Index]
	return true
}

func (r *recent) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries, r.size = nil, 0
}
