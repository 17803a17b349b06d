package core

import (
	"slices"
	"sync"
	"time"
)

// duplicateKept is how long Problems reports a duplicate that was refused.
const duplicateKept = 10 * time.Minute

// Duplicates remembers the nodes and servers that were refused because another
// process runs on a copy of the same data folder. Two processes with one identity
// would undo each other's work. The zero value is ready to use.
type Duplicates struct {
	mu      sync.Mutex
	refused map[string]refusedDuplicate
}

type refusedDuplicate struct {
	problem string
	at      time.Time
}

// Note remembers a refused duplicate and reports whether it is news.
func (d *Duplicates) Note(uid, problem string, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused == nil {
		d.refused = map[string]refusedDuplicate{}
	}
	before, known := d.refused[uid]
	d.refused[uid] = refusedDuplicate{problem: problem, at: now}
	return !known || now.Sub(before.at) > duplicateKept
}

// Problems describes the duplicates that were refused in the last minutes.
func (d *Duplicates) Problems(now time.Time) (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid, one := range d.refused {
		if now.Sub(one.at) > duplicateKept {
			delete(d.refused, uid)
			continue
		}
		all = append(all, one.problem)
	}
	slices.Sort(all)
	return all
}
