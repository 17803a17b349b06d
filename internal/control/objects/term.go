package objects

import (
	"context"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/object"
)

// settle is how long nodes may take to connect to a new leader before they count as away.
const settle = time.Minute

// term is what the loops know since this server leads. A new leader finds all of it out again.
type term struct {
	ctx   context.Context
	began time.Time
	// repair wakes the loop of repairs, compare that of comparisons, scrub that of scrubs, and damage that of damages.
	repair, compare, scrub, damage chan struct{}

	mu sync.Mutex
	// presence is since when nodes are connected or not.
	presence map[string]presence
	// due is when a node is to be compared with the names next.
	due map[string]time.Time
	// scrubbing are the nodes that check their chunks now.
	scrubbing map[string]bool
	// reported are chunks that nodes found damaged.
	reported map[string]map[object.Hash]bool
	// found is what the last survey has found, and copying what the repair that goes on has done.
	found   survey
	copying copying
	// waiting are callers of RepairNow whose repair has not begun.
	waiting []chan error
}

type presence struct {
	connected bool
	since     time.Time
}

func newTerm(ctx context.Context) *term {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	return &term{
		ctx: ctx, began: time.Now(), repair: signal(), compare: signal(), scrub: signal(), damage: signal(),
		presence: map[string]presence{}, due: map[string]time.Time{}, scrubbing: map[string]bool{},
		reported: map[string]map[object.Hash]bool{},
	}
}

// wake lets a loop go on at once.
func wake(loop chan struct{}) {
	select {
	case loop <- struct{}{}:
	default:
	}
}

// rest waits until a loop is woken or a time has passed. It is false when ctx has ended.
func rest(ctx context.Context, woken <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-woken:
	case <-timer.C:
	}
	return ctx.Err() == nil
}

// observe notes which nodes are connected, and returns those that have just become so, and whether anything has changed.
func (t *term) observe(nodes []object.Node) (arrived []string, changed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, left := time.Now(), make(map[string]bool, len(t.presence))
	for uid := range t.presence {
		left[uid] = true
	}
	for _, n := range nodes {
		delete(left, n.UID)
		before, known := t.presence[n.UID]
		if known && before.connected == n.Connected {
			continue
		}
		changed = true
		t.presence[n.UID] = presence{connected: n.Connected, since: now}
		if n.Connected {
			arrived = append(arrived, n.UID)
		}
	}
	for uid := range left {
		changed = true
		delete(t.presence, uid)
		delete(t.due, uid)
	}
	return arrived, changed
}

// at returns since when a node is connected or not.
func (t *term) at(uid string) presence {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, known := t.presence[uid]; known {
		return p
	}
	return presence{since: time.Now()}
}

// surveyed returns what the last survey has found.
func (t *term) surveyed() survey {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.found
}
