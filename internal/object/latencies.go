package object

import (
	"slices"
	"sync"
	"time"
)

// recent is how many calls latencies remember of each class.
const recent = 64

// latencies remember how long the last calls to nodes took, small ones and large ones apart.
type latencies struct {
	mu    sync.Mutex
	took  [3][recent]time.Duration
	count [3]int
}

func latencyClass(size int) int {
	switch {
	case size <= 64<<10:
		return 0
	case size <= 1<<20:
		return 1
	default:
		return 2
	}
}

func (l *latencies) add(size int, took time.Duration) {
	class := latencyClass(size)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took[class][l.count[class]%recent] = took
	l.count[class]++
}

// high is what one of twenty calls exceeded, and 0 if too few are known.
func (l *latencies) high(size int) time.Duration {
	class := latencyClass(size)
	l.mu.Lock()
	known := min(l.count[class], recent)
	took := l.took[class]
	l.mu.Unlock()
	if known < recent/4 {
		return 0
	}
	slices.Sort(took[:known])
	return took[known*19/20]
}
