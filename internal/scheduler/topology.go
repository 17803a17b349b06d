package scheduler

import "slices"

// axis is a topology key other than "node" that matters for an ask. Candidates are grouped
// by their domains on every axis.
type axis struct {
	key string
	// hard is whether a node must have a domain on the axis.
	hard bool
	// mine counts the replicas of the workload by domain.
	mine []int32
}

// level is a spread over the domains of an axis.
type level struct {
	axis    int
	maxSkew int32 // 0 for none
	// domains are those that could take a replica, floor the fewest replicas that one of
	// them has.
	domains []int32
	floor   int32
}

// term is an affinity of the ask, or the anti-affinity of others against it.
type term struct {
	*Affinity
	axis int // -1 for the key "node"
	// self is whether the replicas of the ask count, too.
	self bool
	// count has the matching replicas, by domain or by slot.
	count []int32
	total int
	works []*workload
	// others is whether it stands for all rules of others with this key that keep the ask
	// away. Then count has their replicas.
	others bool
}

// survey finds the replicas that the rules of the ask are about.
func (p *placing) survey() {
	p.axes, p.levels, p.terms = p.axes[:0], p.levels[:0], p.terms[:0]
	p.nodeSkew = 0
	preferences := &p.rev.Preferences
	for _, s := range preferences.Spread {
		if s.Key == KeyNode {
			p.nodeSkew = int32(s.MaxSkew)
			continue
		}
		p.addLevel(s.Key, int32(s.MaxSkew))
	}
	if preferences.levelsZones() {
		p.addLevel(KeyZone, 0)
	}
	for i := range preferences.Affinity {
		p.addTerm(&preferences.Affinity[i])
	}
	for _, s := range p.v.work.avoiders {
		if s.Workload != p.rev.Workload && s.placed > 0 {
			p.addAvoider(s)
		}
	}
	p.countMine()
}

// levelsZones reports whether replicas are levelled over zones by default.
func (w *Preferences) levelsZones() bool { return len(w.Spread) == 0 && w.Strategy.use() != tight }

// Levels are the keys over which replicas are levelled, the most important first.
func (w *Preferences) Levels() (keys []string) {
	nodes := w.Strategy.use() != tight
	for _, s := range w.Spread {
		if s.Key == KeyNode {
			nodes = true
			continue
		}
		keys = append(keys, s.Key)
	}
	if w.levelsZones() {
		keys = append(keys, KeyZone)
	}
	if nodes {
		keys = append(keys, KeyNode)
	}
	return keys
}

func (p *placing) axis(key string, hard bool) int {
	at := slices.IndexFunc(p.axes, func(a axis) bool { return a.key == key })
	if at < 0 {
		at = len(p.axes)
		p.axes = append(p.axes, axis{key: key})
	}
	p.axes[at].hard = p.axes[at].hard || hard
	return at
}

func (p *placing) addLevel(key string, maxSkew int32) {
	p.levels = append(p.levels, level{axis: p.axis(key, maxSkew > 0), maxSkew: maxSkew})
}

// addAvoider adds the rules of a workload that keep the ask away.
func (p *placing) addAvoider(s *shape) {
	for i := range s.Preferences.Affinity {
		if a := &s.Preferences.Affinity[i]; a.Anti && a.required() && a.matches(s.Namespace, p.rev) {
			if t := p.othersBy(a); !slices.Contains(t.works, s.work) {
				p.tally(t, s.work)
			}
		}
	}
}

// othersBy is the term of all rules of others with the same key.
func (p *placing) othersBy(a *Affinity) *term {
	at := slices.IndexFunc(p.terms, func(t term) bool { return t.others && t.Key == a.Key })
	if at < 0 {
		at = len(p.terms)
		p.terms = append(p.terms, p.newTerm(a))
		p.terms[at].others = true
	}
	return &p.terms[at]
}

// workAt is the first workload of a term with a replica in some place.
func (t *term) workAt(here func(i int32) bool) *workload {
	for _, w := range t.works {
		if slices.ContainsFunc(w.on, func(on tally) bool { return here(on.node) }) {
			return w
		}
	}
	return nil
}

// addTerm adds a rule of the ask and counts the matching replicas.
func (p *placing) addTerm(a *Affinity) {
	t := p.newTerm(a)
	t.self = a.matches(p.rev.Namespace, p.rev)
	for _, w := range p.v.work.workloads {
		if w == p.shape.work && t.self || w != p.shape.work && a.matches(p.rev.Namespace, w.newest()) {
			p.tally(&t, w)
		}
	}
	p.terms = append(p.terms, t)
}

func (p *placing) newTerm(a *Affinity) term {
	t := term{Affinity: a, axis: -1}
	if a.Key == KeyNode {
		t.count = make([]int32, len(p.v.class))
		return t
	}
	t.axis = p.axis(a.Key, a.required() && !a.Anti)
	return t
}

// tally adds the replicas of a workload to a term. Leaving replicas do not count for
// affinity, but still for anti-affinity.
func (p *placing) tally(t *term, w *workload) {
	t.works = append(t.works, w)
	for _, on := range w.on {
		count := on.count
		if !t.Anti {
			count -= p.v.goingOf(w, on.node)
		}
		*p.countAt(t, on.node) += count
		t.total += int(count)
	}
}

// goingOf counts the leaving replicas of a workload on a node.
func (v *View) goingOf(w *workload, i int32) (count int32) {
	n := &v.nodes[i]
	if n.going == 0 {
		return 0
	}
	for _, at := range n.replicas {
		if r := v.work.at(at); r.shape.work == w && r.standing == Leaving {
			count++
		}
	}
	return count
}

// countAt is the counter of a term for a node.
func (p *placing) countAt(t *term, i int32) *int32 {
	if t.axis < 0 {
		return &t.count[i]
	}
	d := p.v.classes.domain(p.v.classes.list[p.v.class[i]], p.axes[t.axis].key)
	t.count = reach(t.count, d)
	return &t.count[d]
}

// countMine counts the existing replicas of the ask's workload.
func (p *placing) countMine() {
	p.mine = resized(p.mine, len(p.v.class))
	for k := range p.axes {
		p.axes[k].mine = resized(p.axes[k].mine, 0)
	}
	for _, on := range p.shape.work.on {
		p.mine[on.node] = on.count
		for k := range p.axes {
			at := p.v.classes.domain(p.v.classes.list[p.v.class[on.node]], p.axes[k].key)
			p.axes[k].mine = reach(p.axes[k].mine, at)
			p.axes[k].mine[at] += on.count
		}
	}
}

// reach makes a list long enough for an index.
func reach(list []int32, at int32) []int32 {
	for int(at) >= len(list) {
		list = append(list, 0)
	}
	return list
}

// resized returns a list of zeros, in the same memory if it is large enough.
func resized(list []int32, n int) []int32 {
	if cap(list) < n {
		return make([]int32, n)
	}
	list = list[:n]
	clear(list)
	return list
}

// at reads a count that may be beyond the end of the list.
func at(list []int32, i int32) int32 {
	if int(i) < len(list) {
		return list[i]
	}
	return 0
}

// group finds the group of a class: the nodes that are in the same domains.
func (p *placing) group(c *class) int32 {
	if len(p.axes) == 0 {
		return p.member(groupStep{}, c)
	}
	step := groupStep{domain: p.v.classes.domain(c, p.axes[0].key)}
	if len(p.axes) == 1 { // nearly always
		p.groupIn = reach(p.groupIn, step.domain)
		if p.groupIn[step.domain] == 0 {
			p.groupIn[step.domain] = 1 + p.newGroup(c)
		}
		return p.groupIn[step.domain] - 1
	}
	for k := 1; k < len(p.axes); k++ {
		from, known := p.groupOf[step]
		if !known {
			from = int32(len(p.groupOf)) + 1
			p.groupOf[step] = from
		}
		step = groupStep{from: from, domain: p.v.classes.domain(c, p.axes[k].key)}
	}
	return p.member(step, c)
}

// groupStep leads from the domains on the axes so far to one on the next axis.
type groupStep struct{ from, domain int32 }

// member is the group at the end of the steps.
func (p *placing) member(last groupStep, c *class) int32 {
	g, known := p.groupAt[last]
	if !known {
		g = p.newGroup(c)
		p.groupAt[last] = g
	}
	return g
}

func (p *placing) newGroup(c *class) int32 {
	made := group{}
	if last := len(p.spare) - 1; last >= 0 {
		made.heap = p.spare[last][:0]
		p.spare = p.spare[:last]
	}
	p.groups = append(p.groups, made)
	for k := range p.axes {
		p.domains = append(p.domains, p.v.classes.domain(c, p.axes[k].key))
	}
	return int32(len(p.groups) - 1)
}

// domain is a group's domain on an axis.
func (p *placing) domain(g int32, axis int) int32 { return p.domains[int(g)*len(p.axes)+axis] }

// open reports whether the rules about domains allow a replica in a group now.
func (p *placing) open(g int32) bool { return p.closedBy(g) == nil && p.skewed(g) == nil }

// skewed returns the spread that keeps a group closed.
func (p *placing) skewed(g int32) *level {
	for k := range p.levels {
		l := &p.levels[k]
		if l.maxSkew > 0 && at(p.axes[l.axis].mine, p.domain(g, l.axis))+1-l.floor > l.maxSkew {
			return l
		}
	}
	return nil
}

// closedBy returns the required affinity that keeps a group closed.
func (p *placing) closedBy(g int32) *term {
	for k := range p.terms {
		if t := &p.terms[k]; t.axis >= 0 && t.required() {
			if d := p.domain(g, t.axis); !t.holds(at(t.count, d), d != 0) {
				return t
			}
		}
	}
	return nil
}

// holds reports whether a place with so many of the others is allowed. The first of those
// that want to be together may go anywhere.
func (t *term) holds(count int32, somewhere bool) bool {
	if t.Anti {
		return count == 0 || !somewhere
	}
	return somewhere && (count > 0 || t.self && t.total == 0)
}

// gain is what a preference adds for a place with so many of the others.
func (t *term) gain(count int32) int32 {
	switch {
	case t.required() || count == 0:
		return 0
	case t.Anti:
		return -t.Weight
	default:
		return t.Weight
	}
}

// groupAffinity is the sum of the preferences about a group's domains.
func (p *placing) groupAffinity(g int32) (sum int32) {
	for k := range p.terms {
		if t := &p.terms[k]; t.axis >= 0 {
			if d := p.domain(g, t.axis); d != 0 {
				sum += t.gain(at(t.count, d))
			}
		}
	}
	return sum
}

// nodeAffinity is the sum of the preferences about a node itself and what is on it.
func (p *placing) nodeAffinity(i int32) (sum int32) {
	if len(p.liked) > 0 {
		sum = p.liked[i]
	}
	for k := range p.terms {
		if t := &p.terms[k]; t.axis < 0 {
			sum += t.gain(t.count[i])
		}
	}
	return sum
}

// nodeClosedBy returns the required affinity, among those that of selects, that keeps a
// node closed.
func (p *placing) nodeClosedBy(i int32, of func(*term) bool) *term {
	for k := range p.terms {
		if t := &p.terms[k]; t.axis < 0 && t.required() && of(t) && !t.holds(t.count[i], true) {
			return t
		}
	}
	return nil
}

func anyTerm(*term) bool { return true }

// repels reports whether a workload may not be on the node of the ask.
func (t *term) repels(w *workload) bool {
	return t.axis < 0 && t.required() && t.Anti && slices.Contains(t.works, w)
}

// sameDomain counts the replicas of the workload in the first domain that they are levelled
// over.
func (p *placing) sameDomain(g int32) int32 {
	if len(p.levels) == 0 {
		return 0
	}
	return at(p.axes[p.levels[0].axis].mine, p.domain(g, p.levels[0].axis))
}

// floors finds the domains that a spread with a maximal skew covers.
func (p *placing) floors() {
	var picked []bool
	for k := range p.levels {
		l := &p.levels[k]
		if l.maxSkew == 0 {
			continue
		}
		if p.picks() && picked == nil {
			picked = p.pickedGroups()
		}
		for g := range p.groups {
			if d := p.domain(int32(g), l.axis); (picked == nil || picked[g]) && !slices.Contains(l.domains, d) {
				l.domains = append(l.domains, d)
			}
		}
		l.lower(p.axes[l.axis].mine)
	}
}

// lower finds the fewest replicas that one of the domains has.
func (l *level) lower(mine []int32) {
	if len(l.domains) == 0 {
		return
	}
	l.floor = at(mine, l.domains[0])
	for _, d := range l.domains[1:] {
		l.floor = min(l.floor, at(mine, d))
	}
}

// arrived counts a replica of the ask that was put on a node. It reports whether other
// nodes must be judged again.
func (p *placing) arrived(i, g int32) (again bool) {
	p.mine[i]++
	for k := range p.axes {
		d := p.domain(g, k)
		p.axes[k].mine = reach(p.axes[k].mine, d)
		p.axes[k].mine[d]++
	}
	for k := range p.levels {
		if l := &p.levels[k]; l.maxSkew > 0 && at(p.axes[l.axis].mine, p.domain(g, l.axis))-1 == l.floor {
			l.lower(p.axes[l.axis].mine)
		}
	}
	for k := range p.terms {
		if t := &p.terms[k]; t.self {
			// The others must follow the first one to its node.
			again = again || t.axis < 0 && t.required() && !t.Anti && t.total == 0
			t.total++
			*p.countAt(t, i)++
		}
	}
	return p.nodeFloorRose(i) || again
}

// needed reports whether the ask must not preempt a workload: its own, or one that it must
// be near.
func (p *placing) needed(w *workload) bool {
	if w == p.shape.work {
		return true
	}
	for k := range p.terms {
		if t := &p.terms[k]; t.required() && !t.Anti && slices.Contains(t.works, w) {
			return true
		}
	}
	return false
}

// nodeFloorRose tracks the fewest replicas on a node that could take some, for a spread
// over nodes with a maximal skew.
func (p *placing) nodeFloorRose(i int32) bool {
	if p.nodeSkew == 0 || p.mine[i]-1 != p.nodeFloor {
		return false
	}
	if p.atFloor--; p.atFloor > 0 {
		return false
	}
	p.findNodeFloor()
	return true
}

func (p *placing) findNodeFloor() {
	p.nodeFloor, p.atFloor = 0, 0
	for i, c := range p.v.class {
		switch {
		case !p.verdicts[c].passes, !p.picked(int32(i)):
		case p.atFloor == 0 || p.mine[i] < p.nodeFloor:
			p.nodeFloor, p.atFloor = p.mine[i], 1
		case p.mine[i] == p.nodeFloor:
			p.atFloor++
		}
	}
}
