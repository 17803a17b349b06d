package scheduler

import (
	"cmp"
	"slices"
)

// View is the cluster as the scheduler sees it: nodes, what is promised on them, and
// quotas. It is updated by single changes, each of which costs about a microsecond, and is
// for one goroutine at a time.
//
// Data that every decision reads for every node is in separate arrays.
type View struct {
	// By slot; a slot without a node has class 0.
	class    []int32
	free     []Resources
	traits   []trait
	portBits []uint64 // which ports may be in use, by portBit
	nodes    []nodeCell

	slots  map[string]int32 // by node uid
	unused []int32
	// order has the slots by name, rank the place of each slot in it.
	order, rank []int32
	stale       bool // order is valid; rank and the traits that depend on all nodes are not

	classes    classes
	work       occupancy
	namespaces map[string]*namespace
	weights    Weights // not normalized
	preempts   bool

	largest Resources // of what one node may promise
	journal journal
	place   placing
	waits   waiting
}

// trait is what the score reads of a node. It is small, because it is read for every node
// of every decision.
type trait struct {
	// perCPU and perMemory are thousandths of what may be promised, per unit.
	perCPU, perMemory float32
	// fullCPU and fullMemory are a thousand, or 0 if there is nothing to fill.
	fullCPU, fullMemory     int16
	reliability, cost, link int16
	// size is how large the node is relative to the largest, in thousandths; idle is
	// whether nothing is on it.
	size int16
	idle bool
}

// nodeCell is the rest of a node.
type nodeCell struct {
	Node
	room Resources // what may be promised
	// replicas on the node, those of the lowest priority first; going counts those that
	// leave, leaving is what they have, reserved counts those for which room is being made.
	replicas []int32
	going    int
	leaving  Resources
	reserved int
	works    []workOn
	ports    []portUse
}

// Options are the cluster's settings.
type Options struct {
	// Weights of the score that override the default.
	Weights Weighing
	// Preempt is whether plans may preempt replicas.
	Preempt bool
}

// NewView returns a view without nodes.
func NewView(o Options) *View {
	v := &View{slots: map[string]int32{}, classes: newClasses(), work: newOccupancy(), namespaces: map[string]*namespace{}}
	v.SetOptions(o)
	return v
}

// SetOptions changes the cluster's settings.
func (v *View) SetOptions(o Options) {
	v.weights, v.preempts = o.Weights.over(DefaultWeights), o.Preempt
}

// ApplyNode adds a node or replaces what is known of it. Its replicas stay.
func (v *View) ApplyNode(n Node) {
	i, known := v.slots[n.UID]
	if !known {
		i = v.newSlot()
		v.slots[n.UID] = i
	}
	cell := &v.nodes[i]
	room := n.Allocatable()
	if !known || cell.Name != n.Name {
		v.unlist(i, known)
		cell.Name, cell.UID = n.Name, n.UID
		v.list(i)
	}
	class := v.classes.enter(&n)
	if known && class != v.class[i] {
		v.waits.noteMove(len(v.work.avoiders)+len(v.work.followers) > 0)
	}
	v.classes.leave(v.class[i])
	v.class[i] = class
	v.free[i] = v.free[i].plus(room).minus(cell.room)
	was := v.traits[i]
	v.traits[i] = newTrait(&n, room)
	v.traits[i].idle = len(cell.works) == 0
	v.traits[i].cost, v.traits[i].size = was.cost, was.size
	if !known || cell.Price != n.Price || cell.room != room {
		v.stale = true
	}
	if cell.Away != n.Away {
		v.recount(cell, n.Away)
	}
	cell.Node, cell.room = n, room
	v.waits.noteNode(i)
	v.noteHolds(i)
}

// recount removes what is promised on a node from the quotas, or adds it back.
func (v *View) recount(cell *nodeCell, away bool) {
	for _, at := range cell.replicas {
		s := v.work.at(at).shape
		if away {
			s.space.used.Give(&s.Needs.Resources)
			v.waits.noteQuota(s.space)
		} else {
			s.space.used.Take(&s.Needs.Resources)
		}
	}
}

// RemoveNode forgets a node and the replicas on it.
func (v *View) RemoveNode(uid string) {
	i, known := v.slots[uid]
	if !known {
		return
	}
	v.noteHolds(i)
	v.waits.noteMove(len(v.work.avoiders)+len(v.work.followers) > 0)
	for _, r := range slices.Clone(v.nodes[i].replicas) {
		v.RemoveReplica(v.work.at(r).uid)
	}
	v.unlist(i, true)
	v.classes.leave(v.class[i])
	v.class[i], v.free[i], v.traits[i], v.nodes[i] = 0, Resources{}, trait{}, nodeCell{}
	delete(v.slots, uid)
	v.unused = append(v.unused, i)
}

func (v *View) newSlot() int32 {
	if last := len(v.unused) - 1; last >= 0 {
		i := v.unused[last]
		v.unused = v.unused[:last]
		return i
	}
	v.class = append(v.class, 0)
	v.free = append(v.free, Resources{})
	v.traits = append(v.traits, trait{})
	v.portBits = append(v.portBits, 0)
	v.nodes = append(v.nodes, nodeCell{})
	v.rank = append(v.rank, 0)
	return int32(len(v.class) - 1)
}

// list inserts a slot into the order by name, and unlist removes it.
func (v *View) list(i int32) {
	at, _ := v.find(i)
	v.order = slices.Insert(v.order, at, i)
	v.stale = true
}

func (v *View) unlist(i int32, listed bool) {
	if !listed {
		return
	}
	at, _ := v.find(i)
	v.order = slices.Delete(v.order, at, at+1)
	v.stale = true
}

func (v *View) find(i int32) (int, bool) {
	n := &v.nodes[i]
	return slices.BinarySearchFunc(v.order, n, func(slot int32, n *nodeCell) int {
		o := &v.nodes[slot]
		return cmp.Or(cmp.Compare(o.Name, n.Name), cmp.Compare(o.UID, n.UID))
	})
}

// refresh updates what depends on all nodes together: their order, the most expensive and
// the largest.
func (v *View) refresh() {
	if !v.stale {
		return
	}
	v.stale = false
	v.largest = Resources{}
	dearest := int64(0)
	for rank, i := range v.order {
		v.rank[i] = int32(rank)
		dearest = max(dearest, v.nodes[i].Price)
		for r, amount := range v.nodes[i].room {
			v.largest[r] = max(v.largest[r], amount)
		}
	}
	for _, i := range v.order {
		v.traits[i].cost = costOf(v.nodes[i].Price, dearest)
		v.traits[i].size = sizeOf(&v.nodes[i].room, &v.largest)
	}
}

// Requested is the sum of what is promised on a node.
func (v *View) Requested(nodeUID string) Resources {
	i, known := v.slots[nodeUID]
	if !known {
		return Resources{}
	}
	return v.nodes[i].room.minus(v.free[i])
}
