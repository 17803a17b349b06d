package sim

import (
	"container/heap"
	"time"
)

// event happens at a moment. Of two at the same moment, the one that was planned first
// comes first.
type event struct {
	at  time.Duration
	seq uint64
	do  func()
}

type queue []event

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].seq < q[j].seq
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue) Push(x any) { *q = append(*q, x.(event)) }

func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return last
}

// after plans an event.
func (w *World) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, event{at: w.now + max(0, d), seq: w.seq, do: do})
}

// maxAtOnce is how many events may happen within one simulated second before the world
// counts as looping.
const maxAtOnce = 200_000

// run lets time pass until a moment, or until an invariant breaks.
func (w *World) run(until time.Duration) {
	for w.failure == nil && len(w.events) > 0 && w.events[0].at <= until {
		next := heap.Pop(&w.events).(event)
		if next.at/time.Second != w.now/time.Second {
			w.atOnce = 0
		}
		if w.atOnce++; w.atOnce > maxAtOnce {
			w.fail("progress", "%d events within one second: the cluster runs in circles", w.atOnce)
			return
		}
		w.now = next.at
		next.do()
	}
	if w.failure == nil {
		w.now = until
	}
}
