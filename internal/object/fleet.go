package object

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/object/placement"
)

const (
	// doubtFor is how long a node comes last after something went wrong there.
	doubtFor = 10 * time.Second
	// fullFor is how long a node that was full gets nothing.
	fullFor = 30 * time.Second
	// spares are the nodes that may replace failing ones, beyond the copies.
	spares = 5
	// shownNodes is how many nodes an error names.
	shownNodes = 5
)

// fleet is what the store knows of the nodes: what Disks says, and what it saw itself.
type fleet struct {
	disks  Disks
	logger *slog.Logger

	mu      sync.Mutex
	nodes   []Node
	index   map[string]int
	changed <-chan struct{}
	health  map[string]*health
}

// health is what the store saw of a node.
type health struct {
	// reading is how many reads wait for it, and pace how many seconds recent reads took.
	reading int
	pace    float64
	// doubted and full are until when.
	doubted, full time.Time
}

func newFleet(disks Disks, logger *slog.Logger) *fleet {
	return &fleet{disks: disks, logger: logger, health: map[string]*health{}}
}

// refresh is called with the lock held.
func (f *fleet) refresh() {
	select {
	case <-f.changed:
	default:
		if f.changed != nil {
			return
		}
	}
	f.changed = f.disks.Changed() // before Nodes, so that no change is missed
	f.nodes = f.disks.Nodes()
	f.index = make(map[string]int, len(f.nodes))
	for i, n := range f.nodes {
		f.index[n.UID] = i
		if f.health[n.UID] == nil {
			f.health[n.UID] = &health{}
		}
	}
	for uid := range f.health {
		if _, known := f.index[uid]; !known {
			delete(f.health, uid)
		}
	}
}

// places are where a chunk may be written.
type places struct {
	// order has the best nodes first.
	order []string
	// existing is how many nodes there are, whether they can store something now or not.
	existing int
	// unable says for some of the others why they cannot.
	unable []string
	// never says why no node can until somebody helps; it is empty if that may change by itself.
	never string
}

// place returns the nodes for a chunk.
func (f *fleet) place(hash Hash, size, copies int) places {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	now := time.Now()
	var p places
	able := make([]placement.Node, 0, len(f.nodes))
	for _, n := range f.nodes {
		if !n.Draining {
			p.existing++
		}
		h := f.health[n.UID]
		if why := unable(n, h, now); why != "" {
			p.unable = append(p.unable, n.Name+" "+why)
			continue
		}
		able = append(able, placement.Node{
			UID: n.UID, Zone: n.Zone, Class: n.Class, Capacity: n.Capacity, Free: n.Free, Local: n.Local,
			Doubtful: now.Before(h.doubted),
		})
	}
	p.order = placement.Order(able, placement.Chunk{Hash: hash, Size: int64(size)}, copies+spares)
	if roomless := len(able) - len(p.order); roomless > 0 && len(p.order) < copies {
		p.unable = append(p.unable, fmt.Sprintf("%d more have no room", roomless))
	}
	p.never = never(f.nodes, p.unable)
	return p
}

// never says why no node can store data until somebody helps; it is empty if that may change by itself. A node that is not
// connected may come back.
func never(nodes []Node, reasons []string) string {
	for _, n := range nodes {
		if !n.Draining && (!n.Connected || n.Problem == "" || n.Capacity > 0) {
			return ""
		}
	}
	if len(nodes) == 0 {
		return "the cluster has no nodes; add one with: cloudless join"
	}
	return listed(reasons)
}

// listed shows the first few of many reasons.
func listed(reasons []string) string {
	if more := len(reasons) - shownNodes; more > 0 {
		return fmt.Sprintf("%s, and %d more cannot", strings.Join(reasons[:shownNodes], "; "), more)
	}
	return strings.Join(reasons, "; ")
}

func unable(n Node, h *health, now time.Time) string {
	switch {
	case !n.Connected:
		return "is not connected"
	case n.Problem != "":
		return n.Problem
	case n.Draining:
		return "is draining"
	case now.Before(h.full):
		return "is full"
	}
	return ""
}

// quorum is how many nodes must have a chunk before it counts as stored: most of the copies. Of two nodes one is enough
// while the other one is gone, because a missing copy must not make the store read-only.
func quorum(copies, existing, able int) int {
	switch copies = min(copies, existing); {
	case copies >= 3:
		return copies/2 + 1
	case copies == 2 && (existing > 2 || able >= 2):
		return 2
	}
	return 1
}

// why explains that nothing can be stored.
func (p places) why() string {
	text := fmt.Sprintf("%d of %d nodes can", len(p.order), p.existing)
	if len(p.unable) > 0 {
		text += "; " + listed(p.unable)
	}
	return text
}

// source is a node to read from.
type source struct {
	uid             string
	doubtful, local bool
	// wait is how many seconds a read will take; 0 is not known.
	wait float64
}

// sources orders nodes that have a chunk for reading: healthy before doubtful ones, then the local one, then those that
// will answer first.
func (f *fleet) sources(uids []string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	now := time.Now()
	var known []source
	best := math.Inf(1)
	for _, uid := range uids {
		i, there := f.index[uid]
		if !there || !f.nodes[i].Connected {
			continue
		}
		h := f.health[uid]
		s := source{uid, now.Before(h.doubted), f.nodes[i].Local, float64(h.reading+1) * h.pace}
		if !s.local && s.wait > 0 {
			best = min(best, s.wait)
		}
		known = append(known, s)
	}
	slices.SortStableFunc(known, func(a, b source) int {
		if a.doubtful != b.doubtful {
			return order(b.doubtful)
		}
		if a, b := a.near(best), b.near(best); a != b {
			return order(a)
		}
		return cmp.Compare(a.wait, b.wait)
	})
	sorted := make([]string, len(known))
	for i, s := range known {
		sorted[i] = s.uid
	}
	return sorted
}

// near is whether the node is on this machine, and its disk not much slower than the best of the others.
func (s source) near(best float64) bool { return s.local && s.wait < 4*best }

// order puts the first of two before the second.
func order(first bool) int {
	if first {
		return -1
	}
	return 1
}

// name is how people know a node.
func (f *fleet) name(uid string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if i, known := f.index[uid]; known {
		return f.nodes[i].Name
	}
	return uid
}

// of calls a function with what the store saw of a node, if it still exists.
func (f *fleet) of(uid string, see func(*health)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.health[uid]; h != nil {
		see(h)
	}
}

// began and ended count a read.
func (f *fleet) began(uid string) { f.of(uid, func(h *health) { h.reading++ }) }

func (f *fleet) ended(uid string, took time.Duration) {
	const weight = 0.1 // of the newest
	f.of(uid, func(h *health) {
		h.reading--
		h.pace += weight * (took.Seconds() - h.pace)
	})
}

// doubt lets a node come last for a while.
func (f *fleet) doubt(uid string) {
	f.of(uid, func(h *health) { h.doubted = time.Now().Add(doubtFor) })
}

// filled lets a node get nothing for a while.
func (f *fleet) filled(uid string) {
	now, first := time.Now(), false
	f.of(uid, func(h *health) {
		first = !now.Before(h.full)
		h.full = now.Add(fullFor)
	})
	if first {
		f.logger.Warn("a node's disk is full: other nodes store what it should", "node", f.name(uid))
	}
}
