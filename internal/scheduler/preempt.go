package scheduler

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
)

// Priorities are 0 to 1000. Only those above mayPreempt may preempt others, and never an
// equal or higher one.
const mayPreempt = 100

// priorityClass groups priorities: best effort, usual, important and system. A preemptor of
// a higher class may ignore the MinAvailable of others.
func priorityClass(priority int) int {
	switch {
	case priority <= mayPreempt:
		return 0
	case priority <= 500:
		return 1
	case priority <= 900:
		return 2
	default:
		return 3
	}
}

func (p *placing) mayPreempt() bool { return p.v.preempts && p.rev.Priority > mayPreempt }

// Preemption is a replica that has to leave for a placement.
type Preemption struct {
	// Placement is the index of the placement that needs it.
	Placement int
	// Replica, Workload and Node are uids; Name is the workload's name.
	Replica  string
	Workload string
	Name     string
	Node     string
	NodeName string
	Priority int
}

// offer is a node that could be freed, and the cost: the highest priority that has to
// leave, then the number of victims, then the sum of their priorities. Ties go to the node
// that would win if it were empty.
type offer struct {
	highest, count, sum int32
	place
}

func (o offer) less(other offer) bool {
	switch {
	case o.highest != other.highest:
		return o.highest < other.highest
	case o.count != other.count:
		return o.count < other.count
	case o.sum != other.sum:
		return o.sum < other.sum
	default:
		return o.place.better(other.place)
	}
}

// offers is a heap with the cheapest on top. It holds lower bounds of the costs. They only
// rise while others are taken, because fewer victims are left, so the top is computed
// exactly before it is taken.
type offers []offer

func (o offers) Len() int           { return len(o) }
func (o offers) Less(i, j int) bool { return o[i].less(o[j]) }
func (o offers) Swap(i, j int)      { o[i], o[j] = o[j], o[i] }
func (o *offers) Push(x any)        { *o = append(*o, x.(offer)) }
func (o *offers) Pop() any {
	last := (*o)[len(*o)-1]
	*o = (*o)[:len(*o)-1]
	return last
}

// preempt makes room for up to count replicas and puts them there. If rules are about other
// replicas, it goes one at a time, because each may open places that are free.
func (p *placing) preempt(plan *Plan, index, count int) (done int) {
	if !p.free || !p.plain {
		count = 1
	}
	var victims victims
	open := p.offers(&victims)
	for done < count && len(open) > 0 {
		top := open[0]
		i := p.v.order[top.rank()]
		now, possible := p.offer(i, &victims)
		switch {
		case !possible:
			heap.Pop(&open)
			continue
		case now != top:
			open[0] = now
			heap.Fix(&open, 0)
			continue
		}
		p.carryOut(plan, index, i, victims.taken)
		done++
		if now, possible := p.offer(i, &victims); possible {
			open[0] = now
			heap.Fix(&open, 0)
		} else {
			heap.Pop(&open)
		}
	}
	return done
}

// offers collects the offers of all nodes.
func (p *placing) offers(victims *victims) offers {
	var open offers
	for _, i := range p.v.order {
		if o, possible := p.estimate(i, victims); possible {
			open = append(open, o)
		}
	}
	heap.Init(&open)
	return open
}

// estimate is a lower bound for the cost of a node's offer. Its highest priority is exact.
func (p *placing) estimate(i int32, victims *victims) (offer, bool) {
	of := &p.verdicts[p.v.class[i]]
	if !of.passes || !p.open(of.group) || !p.passesWithoutOthers(i) || !victims.choose(p, i) {
		return offer{}, false
	}
	o := offer{place: p.placeOf(i, of)}
	if last := len(victims.taken) - 1; last >= 0 {
		o.highest = int32(p.v.work.at(victims.taken[last]).shape.Priority)
		lowest, count := victims.leastCount(p, i, int(o.highest))
		o.count, o.sum = int32(count), o.highest+int32((count-1)*lowest)
	}
	return o, true
}

// offer finds the cheapest victims on a node.
func (p *placing) offer(i int32, victims *victims) (offer, bool) {
	o, possible := p.estimate(i, victims)
	if !possible {
		return offer{}, false
	}
	if len(victims.taken) > 0 {
		victims.fewest(p, i)
	}
	o = offer{place: o.place, count: int32(len(victims.taken))}
	for _, r := range victims.taken {
		priority := int32(p.v.work.at(r).shape.Priority)
		o.highest = max(o.highest, priority)
		o.sum += priority
	}
	return o, true
}

// passesWithoutOthers evaluates the filters for a node, except for conflicts with replicas
// that could be preempted: ports and anti-affinity on the same node.
func (p *placing) passesWithoutOthers(i int32) bool {
	for _, f := range p.asked {
		switch f.name {
		case portsFilter:
		case affinity.name:
			if t := p.nodeClosedBy(i, func(t *term) bool { return !t.Anti }); t != nil {
				return false
			}
		default:
			if !f.passes(p, i) {
				return false
			}
		}
	}
	return true
}

// carryOut makes the victims leave and puts a replica in their place. Until they have left,
// no other replica gets their room and rules still count them.
func (p *placing) carryOut(plan *Plan, index int, i int32, taken []int32) {
	n := &p.v.nodes[i]
	for _, at := range taken {
		plan.Preemptions = append(plan.Preemptions, p.preemption(i, at, len(plan.Placements)))
		p.v.markLeaving(at)
	}
	plan.Placements = append(plan.Placements, Placement{
		Ask: index, Node: n.UID, NodeName: n.Name, Score: p.score(i), Preempts: true,
	})
	p.take(i, p.verdicts[p.v.class[i]].group)
}

// preemption describes a victim on a node.
func (p *placing) preemption(i, at int32, placement int) Preemption {
	n, r := &p.v.nodes[i], p.v.work.at(at)
	return Preemption{
		Placement: placement, Replica: r.uid, Workload: r.shape.Workload, Name: r.shape.Name,
		Node: n.UID, NodeName: n.Name, Priority: r.shape.Priority,
	}
}

// victims are the replicas that would have to leave a node. Its memory is reused from node
// to node.
type victims struct {
	taken []int32
	// lost counts what each workload would lose.
	lost []loss
	// blocking counts the replicas that have to leave whatever room there is.
	blocking int
	// regardless ignores the MinAvailable of services.
	regardless bool
	spared     []*shape
	// refused is whether some service would fall below its MinAvailable.
	refused bool
	// useful has the replicas of a node, the most helpful first.
	useful []int32
	search search
}

type loss struct {
	work           *workload
	count, serving int // serving are those that run
}

// choose takes replicas of the lowest priority until there is room, and then spares those
// that need not leave, the highest priority first. So the highest priority that leaves is
// as low as possible, and none leaves in vain. The last one taken has that priority,
// because there was no room without it. A smaller set with the same highest priority may
// exist.
//
// If MinAvailable protects a service so that its lowest replicas make no room, the most
// helpful one is taken instead.
func (t *victims) choose(p *placing, i int32) bool {
	if t.chooseFrom(p, i, p.v.nodes[i].replicas) {
		return true
	}
	return t.refused && !t.regardless && t.chooseFrom(p, i, t.byUse(p, i))
}

// byUse lists the replicas of a node: first those that block, then those with most of what
// is short.
func (t *victims) byUse(p *placing, i int32) []int32 {
	free := p.v.free[i].plus(p.v.nodes[i].leaving)
	short := shortOf(&free, &p.least)
	use := func(at int32) int64 {
		s := p.v.work.at(at).shape
		if p.blocks(s) {
			return math.MaxInt64
		}
		return helps(at, s, &short).gain
	}
	t.useful = append(t.useful[:0], p.v.nodes[i].replicas...)
	slices.SortStableFunc(t.useful, func(a, b int32) int { return cmp.Compare(use(b), use(a)) })
	return t.useful
}

func (t *victims) chooseFrom(p *placing, i int32, replicas []int32) bool {
	t.taken, t.lost, t.spared, t.refused = t.taken[:0], t.lost[:0], t.spared[:0], false
	n := &p.v.nodes[i]
	t.blocking = 0
	if p.shape.bits != 0 || p.repels {
		var possible bool
		if t.blocking, possible = p.countBlocking(i); !possible {
			return false
		}
	}
	free := p.v.free[i].plus(n.leaving)
	enough := func() bool { return t.blocking == 0 && free.holds(&p.least) }
	for _, at := range replicas {
		if enough() {
			break
		}
		r := p.v.work.at(at)
		s := r.shape
		if r.standing == Leaving {
			continue // already counted
		}
		if s.Priority >= p.rev.Priority || p.needed(s.work) || p.guarded(r) || !t.lose(p, r) {
			continue
		}
		t.taken = append(t.taken, at)
		free = free.plus(s.Needs.Resources)
		if p.blocks(s) {
			t.blocking--
		}
	}
	if !enough() {
		return false
	}
	slices.SortFunc(t.taken, p.v.leavesBefore)
	t.spare(p, free)
	return true
}

// spare keeps the replicas without which there is still room.
func (t *victims) spare(p *placing, free Resources) {
	for k := len(t.taken) - 1; k >= 0; k-- {
		s := p.v.work.at(t.taken[k]).shape
		without := free.minus(s.Needs.Resources)
		if without.holds(&p.least) && !p.blocks(s) {
			free = without
			t.taken = slices.Delete(t.taken, k, k+1)
		}
	}
}

// lose takes one replica from a workload, if it may have one less.
func (t *victims) lose(p *placing, r *replica) bool {
	s := r.shape
	if r.standing == Reserved {
		return true // nothing ends
	}
	at := slices.IndexFunc(t.lost, func(l loss) bool { return l.work == s.work })
	if at < 0 {
		at = len(t.lost)
		t.lost = append(t.lost, loss{work: s.work})
	}
	l := &t.lost[at]
	few := s.work.there-l.count-1 < s.MinAvailable || r.standing == Serving && s.work.serving-l.serving-1 < s.MinAvailable
	if few && priorityClass(p.rev.Priority) == priorityClass(s.Priority) {
		if t.refused = true; !t.regardless {
			return false
		}
		t.spared = append(t.spared, s)
	}
	l.count++
	if r.standing == Serving {
		l.serving++
	}
	return true
}

// keep gives a workload its replica back.
func (t *victims) keep(r *replica) {
	at := slices.IndexFunc(t.lost, func(l loss) bool { return l.work == r.shape.work })
	if r.standing == Reserved || at < 0 {
		return
	}
	t.lost[at].count--
	if r.standing == Serving {
		t.lost[at].serving--
	}
}

// findGuards finds the replicas that must be near others and are as important as the ask.
func (p *placing) findGuards() {
	p.guards = p.guards[:0]
	for _, s := range p.v.work.followers {
		if s.Priority >= p.rev.Priority && s.work != p.shape.work && p.mayPreempt() {
			p.guards = append(p.guards, s)
		}
	}
}

// guarded reports whether a replica as important as the ask must be near this one, and is.
// If this one were preempted, the other might preempt the ask, and so on forever.
func (p *placing) guarded(r *replica) bool {
	for _, s := range p.guards {
		for k := range s.Preferences.Affinity {
			if a := &s.Preferences.Affinity[k]; a.required() && !a.Anti && s.work != r.shape.work && a.matches(s.Namespace, r.shape.Revision) && p.v.near(s.work, r.node, a.Key) {
				return true
			}
		}
	}
	return false
}

// near reports whether a workload has a replica in the domain of a node.
func (v *View) near(w *workload, i int32, key string) bool {
	domain := func(k int32) int32 { return v.classes.domain(v.classes.list[v.class[k]], key) }
	return slices.ContainsFunc(w.on, func(on tally) bool {
		return on.node == i || key != KeyNode && domain(i) != 0 && domain(on.node) == domain(i)
	})
}

// blocks reports whether a shape has a port that the ask needs for itself, or must not be
// on the same node.
func (p *placing) blocks(s *shape) bool {
	if p.repels && slices.ContainsFunc(p.terms, func(t term) bool { return t.repels(s.work) }) {
		return true
	}
	return s.bits&p.shape.bits != 0 && !p.shares(s) &&
		slices.ContainsFunc(s.Needs.Ports, func(port Port) bool { return slices.Contains(p.rev.Needs.Ports, port) })
}

// shares reports whether the ask shares its ports with a shape.
func (p *placing) shares(s *shape) bool {
	return s.Needs.SharePorts && p.rev.Needs.SharePorts && s.Workload == p.rev.Workload
}

// countBlocking counts the blocking replicas on a node. It reports whether they could
// leave: placements of this plan stay.
func (p *placing) countBlocking(i int32) (count int, possible bool) {
	n := &p.v.nodes[i]
	for k := range p.terms {
		t := &p.terms[k]
		if t.axis >= 0 || !t.required() || !t.Anti {
			continue
		}
		listed := int32(0)
		for _, at := range n.replicas {
			if slices.Contains(t.works, p.v.work.at(at).shape.work) {
				listed++
			}
		}
		if listed < t.count[i] {
			return 0, false
		}
	}
	for _, use := range n.ports {
		if p.shares(use.shape) || !slices.Contains(p.rev.Needs.Ports, use.Port) {
			continue
		}
		listed := int32(0)
		for _, at := range n.replicas {
			if p.v.work.at(at).shape == use.shape {
				listed++
			}
		}
		if listed < use.count {
			return 0, false
		}
	}
	for _, at := range n.replicas {
		if r := p.v.work.at(at); r.standing != Leaving && p.blocks(r.shape) {
			count++
		}
	}
	return count, true
}
