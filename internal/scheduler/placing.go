package scheduler

// placing is one ask while it is placed. The view owns and reuses it, so that placing
// allocates nothing.
type placing struct {
	v     *View
	rev   *Revision
	shape *shape
	// need is that of one replica; least is what must be free for it.
	need, least Resources
	weights     Weights
	use         use

	// verdicts about classes, by number.
	verdicts []verdict
	// mine counts the replicas of the workload by slot.
	mine []int32
	only map[int32]bool // the only slots that may be used, nil for all
	// otherwise is whether a node's name breaks a required rule; liked is the sum of the
	// preferences about names. Both by slot, and empty if there are no such rules.
	otherwise []bool
	liked     []int32

	axes   []axis
	levels []level
	terms  []term
	// askedOfClass and asked are the filters that apply. free is whether no rule about
	// domains can close a group, plain whether none is about single nodes.
	askedOfClass []classFilter
	asked        []nodeFilter
	free, plain  bool
	// repels is whether some replicas may not be on the same node.
	repels bool
	// guards must be near others, which the ask then may not preempt: the guards are at
	// least as important as the ask.
	guards []*shape

	groups  []group
	domains []int32 // by group and axis
	spare   [][]candidate
	// The way from domains to groups: groupIn for a single axis, else groupOf for all steps
	// but the last and groupAt for the last.
	groupIn          []int32
	groupOf, groupAt map[groupStep]int32

	// nodeSkew is the maximal skew over nodes, 0 for none; nodeFloor is the fewest replicas
	// on a node, and atFloor how many nodes have so few.
	nodeSkew, nodeFloor int32
	atFloor             int
}

// verdict is the result of the rules for a class.
type verdict struct {
	passes  bool
	avoided uint8
	group   int32
	// affinity is the sum of the preferred rules that hold, preferences its rank together with
	// avoided taints.
	affinity    int32
	preferences uint64
	// base is the part of the total that all nodes of the class share, of the components
	// below.
	base, locality, network int32
}

// begin prepares the placing of one ask.
func (p *placing) begin(v *View, s *shape) {
	p.v, p.shape, p.rev = v, s, s.Revision
	p.need, p.least = s.Needs.Resources, s.Needs.Resources.least()
	p.use = s.Preferences.Strategy.use()
	p.weights = s.Preferences.Weights.over(v.weights).normal()
	p.only = nil
	if len(s.Needs.Nodes) > 0 {
		p.only = map[int32]bool{}
		for _, uid := range s.Needs.Nodes {
			if i, known := v.slots[uid]; known {
				p.only[i] = true
			}
		}
	}
	p.survey()
	p.findGuards()
	p.judgeNames()
	p.simplify()
	p.judgeClasses()
	p.floors()
	if p.nodeSkew > 0 {
		p.findNodeFloor()
	}
}

// simplify finds out which checks can be skipped.
func (p *placing) simplify() {
	p.askedOfClass, p.asked = p.askedOfClass[:0], p.asked[:0]
	for _, f := range classFilters {
		if f.applies(p) {
			p.askedOfClass = append(p.askedOfClass, f)
		}
	}
	for _, f := range nodeFilters {
		if f.applies(p) {
			p.asked = append(p.asked, f)
		}
	}
	p.free, p.plain, p.repels = true, len(p.asked)+len(p.liked) == 0, false
	for k := range p.levels {
		p.free = p.free && p.levels[k].maxSkew == 0
	}
	for k := range p.terms {
		t := &p.terms[k]
		p.free = p.free && (t.axis < 0 || !t.required())
		p.plain = p.plain && t.axis >= 0
		p.repels = p.repels || t.axis < 0 && t.required() && t.Anti
	}
}

// judgeClasses evaluates the rules about classes.
func (p *placing) judgeClasses() {
	list := p.v.classes.list
	if cap(p.verdicts) < len(list) {
		p.verdicts = make([]verdict, len(list))
	}
	p.verdicts = p.verdicts[:len(list)]
	for g := range p.groups {
		p.spare = append(p.spare, p.groups[g].heap)
		p.groups[g] = group{}
	}
	p.groups, p.domains, p.groupIn = p.groups[:0], p.domains[:0], resized(p.groupIn, 0)
	if p.groupOf == nil {
		p.groupOf, p.groupAt = map[groupStep]int32{}, map[groupStep]int32{}
	}
	clear(p.groupOf)
	clear(p.groupAt)
	for i, c := range list {
		v := &p.verdicts[i]
		*v = verdict{}
		if c != nil && p.passesClass(c) {
			p.judgeClass(c, v)
		}
	}
}

// judgeClass fills in the verdict about a class that passes, if it is missing.
func (p *placing) judgeClass(c *class, v *verdict) {
	v.passes, v.group, v.network = true, p.group(c), thousandth
	var across bool
	if v.locality, across = p.rev.Preferences.near(c); across {
		v.network = otherRegion
	}
	v.base = p.weights.Locality * v.locality
	for i := range p.rev.Preferences.Prefer {
		if r := &p.rev.Preferences.Prefer[i]; !r.identifiesNode() && r.holds(c.labels) {
			v.affinity += r.Weight
		}
	}
	for _, t := range c.taints {
		if _, tolerated := Tolerates(p.rev.Needs.Tolerations, t); !tolerated && t.Effect == PreferNoSchedule && v.avoided < mostAvoided {
			v.avoided++
		}
	}
	v.preferences = preferencesOf(v.affinity, v.avoided)
}

// passesClass reports whether no rule refuses a class.
func (p *placing) passesClass(c *class) bool {
	for _, f := range p.askedOfClass {
		if !f.passes(p, c) {
			return false
		}
	}
	return true
}

// passesNode reports whether a node of a class that passes would take a replica, ignoring
// rules that depend on other nodes.
func (p *placing) passesNode(i int32) bool {
	if !p.v.free[i].holds(&p.least) {
		return false
	}
	return p.plain || p.passesSingly(i)
}

func (p *placing) passesSingly(i int32) bool {
	for _, f := range p.asked {
		if !f.passes(p, i) {
			return false
		}
	}
	return true
}

// candidate ranks a node that passes.
func (p *placing) candidate(i int32, of *verdict) candidate {
	affinity, mine := of.affinity, p.mine[i]
	if !p.plain {
		affinity += p.nodeAffinity(i)
	}
	if p.use == tight {
		mine = 0
	}
	return newCandidate(affinity, of.avoided, mine, p.total(i, of), p.v.rank[i])
}

// look judges every node.
func (p *placing) look(single bool) {
	for g := range p.groups {
		p.groups[g].heap = p.groups[g].heap[:0]
	}
	if single {
		p.lookForOne()
		return
	}
	for i, c := range p.v.class {
		of := &p.verdicts[c]
		if of.passes && p.v.free[i].holds(&p.least) && (p.plain || p.passesSingly(int32(i))) {
			g := &p.groups[of.group]
			g.heap = append(g.heap, p.candidate(int32(i), of))
		}
	}
	for g := range p.groups {
		p.groups[g].order()
	}
}

// lookForOne judges every node and keeps the best of each group, which is enough for a
// single replica. Most of a decision's time is spent here, so the common case is inlined;
// see candidate for the rest. It skips a node that would lose even with the best possible
// utilization.
func (p *placing) lookForOne() {
	weights, need, least, usual := p.weights, p.need, p.least, p.plain && p.use == full
	verdicts, groups, class := p.verdicts, p.groups, p.v.class
	free, traits, mine, rank := p.v.free[:len(class)], p.v.traits[:len(class)], p.mine[:len(class)], p.v.rank[:len(class)]
	for i, c := range class {
		of, t := &verdicts[c], &traits[i]
		if !of.passes {
			continue
		}
		g := &groups[of.group]
		if usual && len(g.heap) > 0 && !candidateOf(of.preferences, mine[i], weights.sum(of, t, thousandth), rank[i]).better(g.heap[0]) {
			continue
		}
		if !free[i].holds(&least) || !p.plain && !p.passesSingly(int32(i)) {
			continue
		}
		var one candidate
		if usual && !t.idle {
			one = candidateOf(of.preferences, mine[i], weights.sum(of, t, t.used(&free[i], &need)), rank[i])
		} else {
			one = p.candidate(int32(i), of)
		}
		if len(g.heap) == 0 {
			g.heap = append(g.heap, one)
		} else if one.better(g.heap[0]) {
			g.heap[0] = one
		}
	}
}

// run places up to count replicas and reports where each goes.
func (p *placing) run(count int, placed func(i int32, s Score)) (done int) {
	if count <= 0 {
		return 0
	}
	p.look(count == 1)
	for done < count {
		g := p.best()
		if g < 0 {
			break
		}
		i := p.v.order[p.groups[g].heap[0].rank()]
		placed(i, p.score(i))
		done++
		again := p.take(i, g)
		switch {
		case done == count:
		case again:
			p.look(false)
		case p.passesNode(i):
			p.groups[g].replace(p.candidate(i, &p.verdicts[p.v.class[i]]))
		default:
			p.groups[g].drop()
		}
	}
	return done
}

// take puts one replica of the ask on a node.
func (p *placing) take(i, g int32) (again bool) {
	p.v.put(i, p.shape)
	return p.arrived(i, g)
}
