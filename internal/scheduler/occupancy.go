package scheduler

import (
	"cmp"
	"slices"
)

// occupancy is what runs where. Everything is numbered, because there may be millions of
// replicas: those of one revision share a shape, and a workload has one tally for each node
// that it is on.
type occupancy struct {
	blocks    []*block
	count     int32 // of replicas in them, used or not
	byUID     map[string]int32
	unused    []int32
	shapes    map[string]*shape // by revision uid
	workloads map[string]*workload
	// avoiders are the shapes with rules that keep others away, followers those that must
	// be near others; both by uid.
	avoiders, followers []*shape
}

// block is a chunk of the replicas. A growing slice of millions would sometimes be copied,
// which blocks a core for a tenth of a second.
type block [1 << blockBits]replica

const blockBits = 10

// at is the replica with a number.
func (o *occupancy) at(i int32) *replica { return &o.blocks[i>>blockBits][i&(1<<blockBits-1)] }

type replica struct {
	uid      string
	shape    *shape
	node     int32
	standing Standing
}

// shape is a revision that is in use in the view.
type shape struct {
	*Revision
	work  *workload
	space *namespace
	users int
	// placed counts its replicas on nodes: an ask alone keeps no others away.
	placed int
	bits   uint64 // of its ports
}

// workload is the sum of its shapes.
type workload struct {
	uid    string
	shapes []*shape
	on     []tally
	total  int
	// there counts the replicas that stay, serving those of them that run.
	there, serving int
}

// tally is how many replicas of a workload are on a node. workOn is the reverse.
type tally struct{ node, count int32 }

type workOn struct {
	work *workload
	at   int32 // in work.on
}

// portUse is a port of a node and its user, with a count.
type portUse struct {
	Port
	shape *shape
	count int32
}

func newOccupancy() occupancy {
	return occupancy{byUID: map[string]int32{}, shapes: map[string]*shape{}, workloads: map[string]*workload{}}
}

// newest represents a workload with several running revisions.
func (w *workload) newest() *Revision {
	return slices.MaxFunc(w.shapes, func(a, b *shape) int { return cmp.Compare(a.UID, b.UID) }).Revision
}

// enter makes a revision known as long as it has users.
func (v *View) enter(r *Revision) *shape {
	s := v.work.shapes[r.UID]
	if s == nil {
		w := v.work.workloads[r.Workload]
		if w == nil {
			w = &workload{uid: r.Workload}
			v.work.workloads[r.Workload] = w
		}
		s = &shape{Revision: r, work: w, space: v.space(r.Namespace), bits: portBits(r.Needs.Ports)}
		w.shapes = append(w.shapes, s)
		v.work.shapes[r.UID] = s
		if r.repels() {
			v.work.avoiders = withShape(v.work.avoiders, s)
		}
		if r.follows() {
			v.work.followers = withShape(v.work.followers, s)
		}
	}
	s.users++
	return s
}

func withShape(list []*shape, s *shape) []*shape {
	at, _ := slices.BinarySearchFunc(list, s, func(a, b *shape) int { return cmp.Compare(a.UID, b.UID) })
	return slices.Insert(list, at, s)
}

func (v *View) leave(s *shape) {
	if s.users--; s.users > 0 {
		return
	}
	is := func(o *shape) bool { return o == s }
	delete(v.work.shapes, s.UID)
	v.work.avoiders = slices.DeleteFunc(v.work.avoiders, is)
	v.work.followers = slices.DeleteFunc(v.work.followers, is)
	s.work.shapes = slices.DeleteFunc(s.work.shapes, is)
	if len(s.work.shapes) == 0 {
		delete(v.work.workloads, s.work.uid)
	}
}

// ApplyReplica puts a running replica onto a node, or moves it there. It reports whether
// the node is known; a replica on an unknown node does not count.
func (v *View) ApplyReplica(uid string, r *Revision, nodeUID string) bool {
	return v.ApplyReplicaAs(uid, r, nodeUID, Serving)
}

// ApplyReplicaAs does the same for a replica with any standing.
func (v *View) ApplyReplicaAs(uid string, r *Revision, nodeUID string, as Standing) bool {
	if old, known := v.work.byUID[uid]; known {
		is := v.work.at(old)
		if is.shape.UID == r.UID && v.nodes[is.node].UID == nodeUID {
			v.setStanding(old, as)
			return true
		}
		v.RemoveReplica(uid)
	}
	i, known := v.slots[nodeUID]
	if !known {
		return false
	}
	at := v.work.slot()
	*v.work.at(at) = replica{uid: uid, shape: v.enter(r), node: i, standing: as}
	v.work.byUID[uid] = at
	v.addToNode(at)
	v.occupy(i, v.work.at(at).shape)
	v.waits.moved = true
	v.noteMore(v.work.at(at).shape)
	v.noteHold(at)
	return true
}

// RemoveReplica forgets a replica.
func (v *View) RemoveReplica(uid string) {
	at, known := v.work.byUID[uid]
	if !known {
		return
	}
	was := *v.work.at(at)
	v.removeFromNode(at)
	v.vacate(was.node, was.shape)
	v.leave(was.shape)
	*v.work.at(at) = replica{}
	v.work.unused = append(v.work.unused, at)
	delete(v.work.byUID, uid)
	v.waits.noteRoom(was.node, was.shape)
	v.noteHolds(was.node)
}

func (o *occupancy) slot() int32 {
	if last := len(o.unused) - 1; last >= 0 {
		at := o.unused[last]
		o.unused = o.unused[:last]
		return at
	}
	if o.count>>blockBits == int32(len(o.blocks)) {
		o.blocks = append(o.blocks, &block{})
	}
	o.count++
	return o.count - 1
}

// addToNode adds a replica to its node's list, and removeFromNode removes it. The list is in eviction
// order.
func (v *View) addToNode(at int32) {
	list := &v.nodes[v.work.at(at).node].replicas
	place, _ := v.seat(*list, at)
	*list = slices.Insert(*list, place, at)
	v.countStanding(at, 1)
}

func (v *View) removeFromNode(at int32) {
	list := &v.nodes[v.work.at(at).node].replicas
	if place, there := v.seat(*list, at); there {
		*list = slices.Delete(*list, place, place+1)
		v.countStanding(at, -1)
	}
}

func (v *View) seat(list []int32, at int32) (int, bool) {
	return slices.BinarySearchFunc(list, at, v.leavesBefore)
}

// leavesBefore is the eviction order.
func (v *View) leavesBefore(a, b int32) int {
	x, y := v.work.at(a), v.work.at(b)
	return cmp.Or(cmp.Compare(x.shape.Priority, y.shape.Priority), cmp.Compare(x.uid, y.uid))
}

// occupy promises one replica of a shape what it needs of a node.
func (v *View) occupy(i int32, s *shape) {
	v.free[i] = v.free[i].minus(s.Needs.Resources)
	if !v.nodes[i].Away {
		s.space.used.Take(&s.Needs.Resources)
	}
	s.placed++
	v.nodes[i].count(s.work, i)
	v.traits[i].idle = false
	for _, p := range s.Needs.Ports {
		v.nodes[i].takePort(p, s)
	}
	v.portBits[i] |= s.bits
}

// vacate takes the promise back.
func (v *View) vacate(i int32, s *shape) {
	v.free[i] = v.free[i].plus(s.Needs.Resources)
	if !v.nodes[i].Away {
		s.space.used.Give(&s.Needs.Resources)
	}
	s.placed--
	v.uncount(i, s.work)
	if len(s.Needs.Ports) == 0 {
		return
	}
	for _, p := range s.Needs.Ports {
		v.nodes[i].givePort(p, s)
	}
	v.portBits[i] = 0
	for _, use := range v.nodes[i].ports {
		v.portBits[i] |= portBit(use.Port)
	}
}

func (n *nodeCell) count(w *workload, i int32) {
	w.total++
	for _, o := range n.works {
		if o.work == w {
			w.on[o.at].count++
			return
		}
	}
	n.works = append(n.works, workOn{work: w, at: int32(len(w.on))})
	w.on = append(w.on, tally{node: i, count: 1})
}

func (v *View) uncount(i int32, w *workload) {
	works := &v.nodes[i].works
	at := slices.IndexFunc(*works, func(o workOn) bool { return o.work == w })
	w.total--
	place := (*works)[at].at
	if w.on[place].count--; w.on[place].count > 0 {
		return
	}
	*works = slices.Delete(*works, at, at+1)
	v.traits[i].idle = len(*works) == 0
	last := int32(len(w.on) - 1)
	if place != last { // the last one moves into the gap
		w.on[place] = w.on[last]
		moved := v.nodes[w.on[place].node].works
		moved[slices.IndexFunc(moved, func(o workOn) bool { return o.work == w })].at = place
	}
	w.on = w.on[:last]
}

func (n *nodeCell) takePort(p Port, s *shape) {
	for j := range n.ports {
		if n.ports[j].Port == p && n.ports[j].shape == s {
			n.ports[j].count++
			return
		}
	}
	n.ports = append(n.ports, portUse{Port: p, shape: s, count: 1})
}

func (n *nodeCell) givePort(p Port, s *shape) {
	at := slices.IndexFunc(n.ports, func(u portUse) bool { return u.Port == p && u.shape == s })
	if n.ports[at].count--; n.ports[at].count == 0 {
		n.ports = slices.Delete(n.ports, at, at+1)
	}
}

// portOwner returns the first user, by name, of a port that cannot be shared with a
// revision, nil if there is none.
func (n *nodeCell) portOwner(p Port, r *Revision) *portUse {
	var owner *portUse
	for j := range n.ports {
		use := &n.ports[j]
		shared := use.shape.Needs.SharePorts && r.Needs.SharePorts && use.shape.Workload == r.Workload
		if use.Port == p && !shared && (owner == nil || use.shape.UID < owner.shape.UID) {
			owner = use
		}
	}
	return owner
}

// portBit is a port's bit in a word that quickly rules out most port conflicts.
func portBit(p Port) uint64 {
	hash := uint64(p.Number)
	if p.Protocol == "udp" {
		hash += 31
	}
	return 1 << (hash * 0x9E3779B97F4A7C15 >> 58)
}

func portBits(ports []Port) (bits uint64) {
	for _, p := range ports {
		bits |= portBit(p)
	}
	return bits
}
