package objects

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
)

// Status is how the object store is.
type Status struct {
	// Leading is whether this server runs the loops. Otherwise it knows only totals, nodes and classes.
	Leading bool
	// Objects are current objects, Versions all versions, and Bytes their bytes.
	Objects, Versions, Bytes int64
	// Chunks are those that something refers to, once each; Garbage those that are deleted after a while.
	Chunks, ChunkBytes, Garbage int64
	Epoch                       uint64
	// UnderReplicated have fewer copies on nodes that answer than they should and could have. Unreachable have none.
	UnderReplicated, Unreachable int64
	// Reasons say why, a sentence each.
	Reasons []string
	// RepairRate is in bytes a second, now; RepairBytesLeft is what is still to be copied, and RepairEnd when that will
	// be done. It is zero while nothing is copied.
	RepairRate, RepairBytesLeft int64
	RepairEnd                   time.Time
	Nodes                       []NodeStatus
	Classes                     []ClassStatus
}

// The states of nodes.
const (
	Online   = "online"
	Offline  = "offline"
	Full     = "full"
	Draining = "draining"
	// None is a node that keeps no data.
	None = "none"
)

// NodeStatus is the disk of a node.
type NodeStatus struct {
	object.Node
	State string
	// Scrubbing is whether its chunks are being checked now.
	Scrubbing bool
	// Lacking are the chunks that lack a copy because of it, or, while it is draining, those that are still there.
	Lacking int64
	// Emptied is whether it is draining and other nodes have copies of all that it had.
	Emptied bool
}

// ClassStatus are all disks of a class.
type ClassStatus struct {
	Class                string
	Nodes                int
	Capacity, Used, Free int64
}

// Progress is how far a scrub or a repair is. Done and Total are in bytes.
type Progress struct {
	// Node is the UID of the node that is scrubbed; it is empty for repairs.
	Node                 string
	Done, Total, Damaged int64
	Finished             bool
	// Message is a sentence, such as why a node was not scrubbed.
	Message string
}

// Status returns how the object store is. It asks no node. What chunks lack is as the last survey has found it, minutes
// ago at most while something is wrong.
func (l *Loops) Status(ctx context.Context) (Status, error) {
	s := Status{}
	err := l.read(ctx, func(view *names.View) error {
		totals, err := view.Totals()
		s.Objects, s.Versions, s.Bytes = totals.Objects, totals.Versions, totals.Bytes
		s.Chunks, s.ChunkBytes, s.Garbage, s.Epoch = totals.Chunks, totals.ChunkBytes, totals.Dead, view.Epoch()
		return err
	})
	if err != nil {
		return s, err
	}
	nodes := l.o.Disks.Nodes()
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, NodeStatus{Node: n, State: stateOf(n)})
	}
	slices.SortFunc(s.Nodes, func(a, b NodeStatus) int { return cmp.Compare(a.Name, b.Name) })
	s.Classes = classesOf(nodes)
	if t := l.leading(); t != nil {
		t.describe(&s, l.o.Settings().RepairDelay)
	}
	return s, nil
}

func stateOf(n object.Node) string {
	switch {
	case n.Draining:
		return Draining
	case !n.Connected:
		return Offline
	case n.Capacity == 0:
		return None
	case n.Problem != "":
		return Full
	}
	return Online
}

func classesOf(nodes []object.Node) []ClassStatus {
	classes := map[string]*ClassStatus{}
	for _, n := range nodes {
		if n.Class == "" {
			continue // it has not said yet what disk it has
		}
		c := classes[n.Class]
		if c == nil {
			c = &ClassStatus{Class: n.Class}
			classes[n.Class] = c
		}
		c.Nodes++
		c.Capacity += n.Capacity
		c.Used += n.Used
		c.Free += n.Free
	}
	var all []ClassStatus
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		all = append(all, *classes[name])
	}
	return all
}

// describe adds what the loops know.
func (t *term) describe(s *Status, delay time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Leading, s.UnderReplicated, s.Unreachable = true, t.found.lacking, t.found.unreachable
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.Scrubbing, n.Lacking = t.scrubbing[n.UID], t.found.on[n.UID]
		n.Emptied = n.Draining && t.found.emptied(n.UID)
	}
	s.Reasons = t.found.reasons(time.Now(), delay)
	s.RepairBytesLeft = t.found.bytes
	if c := t.copying; c.active {
		s.RepairBytesLeft = max(0, c.total-c.done)
		if s.RepairRate = c.perSecond(); s.RepairRate > 0 {
			left := float64(s.RepairBytesLeft) / float64(s.RepairRate)
			s.RepairEnd = time.Now().Add(time.Duration(left * float64(time.Second))).Truncate(time.Second)
		}
	}
}

// emptied is whether a node was leaving and had nothing that others lack. A node without a number never had anything.
func (s survey) emptied(uid string) bool {
	if s.fleet == nil {
		return false
	}
	m := s.fleet.byUID[uid]
	return m == nil || m.standing == leaving && s.on[uid] == 0
}

// pieces is a number of chunks for people, who know objects, with the right form of a verb.
func pieces(n int64, one, many string) string {
	if n == 1 {
		return "1 piece of an object " + one
	}
	return fmt.Sprintf("%d pieces of objects %s", n, many)
}

// reasons says why chunks lack copies.
func (s survey) reasons(now time.Time, delay time.Duration) []string {
	var all []string
	if s.fleet == nil {
		return nil
	}
	for _, m := range s.fleet.troubled() {
		if reason := s.because(m, now, delay); reason != "" {
			all = append(all, reason)
		}
	}
	if s.roomless > 0 {
		all = append(all, pieces(s.roomless, "lacks", "lack")+" a copy, and no other node has room for it: free space, or add a node")
	}
	if s.few > 0 {
		all = append(all, fmt.Sprintf("%s more copies than the cluster has nodes (%d): copies are made when nodes join", pieces(s.few, "wants", "want"), s.fleet.existing))
	}
	if offline := s.unreachable - s.lost; offline > 0 {
		all = append(all, fmt.Sprintf("%s only on nodes that do not answer (%s): bring one of these back", pieces(offline, "is", "are"), s.offline()))
	}
	if s.lost > 0 {
		all = append(all, pieces(s.lost, "is", "are")+" on no node any more: put what is damaged again, or bring back a node that has it")
	}
	return all
}

// because says what a node that does not serve has to do with it.
func (s survey) because(m *member, now time.Time, delay time.Duration) string {
	count := s.on[m.UID]
	if count == 0 {
		return ""
	}
	passed := now.Sub(m.since).Round(time.Second)
	switch m.standing {
	case away:
		return fmt.Sprintf("node %s has not answered for %s: %s a copy less, and other nodes make new ones if it stays away for %s",
			m.Name, passed, pieces(count, "has", "have"), delay)
	case lost:
		if m.since.IsZero() {
			return fmt.Sprintf("node %s is not in the cluster any more: %s a copy less", m.Name, pieces(count, "has", "have"))
		}
		return fmt.Sprintf("node %s has not answered for %s: %s a copy less, and other nodes make new ones", m.Name, passed, pieces(count, "has", "have"))
	case leaving:
		return fmt.Sprintf("node %s is draining: %s moved to other nodes", m.Name, pieces(count, "is", "are"))
	}
	return ""
}

// offline names nodes that do not answer.
func (s survey) offline() string {
	var all []string
	for _, m := range s.fleet.troubled() {
		if !m.Connected {
			all = append(all, m.Name)
		}
	}
	return strings.Join(all, ", ")
}
