package streams

import (
	"container/heap"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// mergeLogs merges sources by time. Each source is ordered by time already.
func mergeLogs(sources []<-chan *v1.LogEntry, send func(*v1.LogEntry) error) error {
	var heads logHeap
	for _, source := range sources {
		if e, ok := <-source; ok {
			heads = append(heads, logHead{e, source})
		}
	}
	heap.Init(&heads)
	for len(heads) > 0 {
		if err := send(heads[0].entry); err != nil {
			return err
		}
		if e, ok := <-heads[0].source; ok {
			heads[0].entry = e
			heap.Fix(&heads, 0)
		} else {
			heap.Pop(&heads)
		}
	}
	return nil
}

// logHead is the next entry of a source.
type logHead struct {
	entry  *v1.LogEntry
	source <-chan *v1.LogEntry
}

// logHeap is a heap.Interface with the earliest entry first.
type logHeap []logHead

func (h logHeap) Len() int      { return len(h) }
func (h logHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *logHeap) Push(x any)   { *h = append(*h, x.(logHead)) }

func (h logHeap) Less(i, j int) bool {
	a, b := h[i].entry.GetTime().AsTime(), h[j].entry.GetTime().AsTime()
	if a.Equal(b) {
		return h[i].entry.GetReplica() < h[j].entry.GetReplica()
	}
	return a.Before(b)
}

func (h *logHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
