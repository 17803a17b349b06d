package placement

import (
	"iter"
	"slices"
	"sync"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// Decision is the score with which a replica was placed on a node.
type Decision struct {
	Replica, Node string
	Score         scheduler.Score
}

// Decisions remembers the loop's newest placements, with their scores by component. Only
// the leader has them, in memory: in the log they would cost more than the replicas
// themselves, and the next leader can compute scores again.
//
// Its zero value is ready for use. It is safe for concurrent use.
type Decisions struct {
	mu sync.Mutex
	// ring holds the newest decisions and next is the index of the oldest; byReplica finds
	// them by uid.
	ring      []Decision
	next      int
	byReplica map[string]int
}

// keptDecisions bounds the memory to about 2 MB.
const keptDecisions = 10_000

// Keep remembers decisions that were committed.
func (d *Decisions) Keep(made []Decision) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.byReplica == nil {
		d.byReplica = map[string]int{}
	}
	for _, one := range made[max(0, len(made)-keptDecisions):] {
		if len(d.ring) < keptDecisions {
			d.ring = append(d.ring, one)
			d.byReplica[one.Replica] = len(d.ring) - 1
			continue
		}
		if d.byReplica[d.ring[d.next].Replica] == d.next {
			delete(d.byReplica, d.ring[d.next].Replica)
		}
		d.ring[d.next], d.byReplica[one.Replica] = one, d.next
		d.next = (d.next + 1) % keptDecisions
	}
}

// find returns the score with which a replica was placed on a node, if it is remembered.
func (d *Decisions) find(replica, node string) (scheduler.Score, bool) {
	if d == nil {
		return scheduler.Score{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.byReplica[replica]
	if !known || d.ring[at].Node != node {
		return scheduler.Score{}, false
	}
	return d.ring[at].Score, true
}

// All are the decisions that are remembered.
func (d *Decisions) All() iter.Seq[Decision] {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Values(slices.Clone(d.ring))
}
