package replicas

import (
	"sync"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// decision is the score with which a replica was placed on a node.
type decision struct {
	replica, node string
	score         scheduler.Score
}

// Decisions are the newest placements of the loop, with the scores by component
// that they were made for. They are in the memory of the server that leads and
// nowhere else: in the log they would cost more than the replicas themselves, and
// who leads next can judge anew.
//
// Its zero value is ready for use, by several goroutines.
type Decisions struct {
	mu sync.Mutex
	// ring has the newest, next is where the oldest is; byReplica finds them by uid.
	ring      []decision
	next      int
	byReplica map[string]int
}

// keptDecisions bounds them to about 2 MB.
const keptDecisions = 10_000

// keep remembers decisions that hold.
func (d *Decisions) keep(made []decision) {
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
			d.byReplica[one.replica] = len(d.ring) - 1
			continue
		}
		if d.byReplica[d.ring[d.next].replica] == d.next {
			delete(d.byReplica, d.ring[d.next].replica)
		}
		d.ring[d.next], d.byReplica[one.replica] = one, d.next
		d.next = (d.next + 1) % keptDecisions
	}
}

// find returns the score with which a replica was placed on a node, if that is
// remembered.
func (d *Decisions) find(replica, node string) (scheduler.Score, bool) {
	if d == nil {
		return scheduler.Score{}, false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.byReplica[replica]
	if !known || d.ring[at].node != node {
		return scheduler.Score{}, false
	}
	return d.ring[at].score, true
}
