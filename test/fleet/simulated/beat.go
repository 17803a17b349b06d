package simulated

import (
	"container/heap"
	"context"
	"fmt"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// grain is the precision of the schedule. A timer for each of thousands of nodes would cost more than the work itself.
const grain = 20 * time.Millisecond

// Kinds of scheduled work.
type task int

const (
	beating task = iota
	saying
)

// due is scheduled work for a node.
type due struct {
	at    time.Time
	node  *Node
	what  task
	round int
}

// shard does the scheduled work of a part of the nodes.
type shard struct {
	mu    sync.Mutex
	queue agenda
}

// schedule spreads the heartbeats of all nodes over the interval.
func (f *Fleet) schedule() {
	for range shards {
		f.shards = append(f.shards, &shard{})
	}
	now := time.Now()
	for i, n := range f.nodes {
		n.shard().add(now.Add(n.every()*time.Duration(i)/time.Duration(len(f.nodes))), n, beating)
	}
}

func (n *Node) shard() *shard { return n.fleet.shards[n.index%shards] }

func (s *shard) add(at time.Time, n *Node, what task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	heap.Push(&s.queue, due{at: at, node: n, what: what})
}

// run does what is due until ctx ends.
func (s *shard) run(ctx context.Context) {
	ticker := time.NewTicker(grain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for d, ok := s.next(now); ok && ctx.Err() == nil; d, ok = s.next(now) {
				d.do()
			}
		}
	}
}

// next takes what is due. A heartbeat is due again an interval later, or an interval from now if this is late: a busy
// machine does not catch up on missed heartbeats.
func (s *shard) next(now time.Time) (due, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.queue) == 0 || s.queue[0].at.After(now) {
		return due{}, false
	}
	d := s.queue[0]
	if d.what != beating {
		heap.Pop(&s.queue)
		return d, true
	}
	again := d
	again.round++
	if again.at = d.at.Add(d.node.every()); again.at.Before(now) {
		again.at = now.Add(d.node.every())
	}
	s.queue[0] = again
	heap.Fix(&s.queue, 0)
	return d, true
}

func (d due) do() {
	if d.what == saying {
		d.node.say()
		return
	}
	d.node.beat(d.round, d.at)
}

// every is how often the node reports now.
func (n *Node) every() time.Duration { return time.Duration(n.interval.Load()) }

func (n *Node) setPace(every time.Duration) { n.interval.Store(int64(every)) }

// agenda is ordered by time.
type agenda []due

func (a agenda) Len() int           { return len(a) }
func (a agenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a agenda) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)        { *a = append(*a, x.(due)) }
func (a *agenda) Pop() any {
	old := *a
	last := old[len(old)-1]
	*a = old[:len(old)-1]
	return last
}

// variants of a heartbeat have different measurements, so that a server cannot treat them as equal.
const variants = 16

// beats are the encoded heartbeats, which all nodes share.
type beats struct {
	mu    sync.Mutex
	cache map[time.Duration][variants][]byte
}

func (b *beats) of(interval time.Duration, variant int) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	made, ok := b.cache[interval]
	if !ok {
		for i := range made {
			beat := &v1.Heartbeat{
				Interval: spec.FormatDuration(interval),
				Usage:    &v1.NodeResources{Cpu: fmt.Sprintf("%dm", 800+37*i), Memory: fmt.Sprint(3<<30 + i<<20), Disk: fmt.Sprint(40<<30 + i<<24), Pids: int64(300 + i)},
			}
			made[i], _ = encode(&v1.SessionUp{Message: &v1.SessionUp_Heartbeat{Heartbeat: beat}}) // numbers and plain text always encode
		}
		if b.cache == nil {
			b.cache = map[time.Duration][variants][]byte{}
		}
		b.cache[interval] = made
	}
	return made[variant%variants]
}
