package scheduler

import (
	"fmt"
	"slices"
	"sort"
	"strings"
)

// Question asks how every node is judged for one more replica of a revision.
type Question struct {
	Revision *Revision
	// Without are uids of replicas that are taken for gone, as in a Request.
	Without []string
	// Most bounds how many nodes that would take the replica are told of, and how
	// many that refuse; 0 for all, NoNodes for none.
	Most int
	// Nodes are uids of nodes that are told of in any case.
	Nodes []string
}

// NoNodes tells of no nodes but those that are asked for by uid.
const NoNodes = -1

// Explanation is how a view judges every node for one more replica. A plan for it
// takes the node of rank 1 and no other, unless the quota is used up.
type Explanation struct {
	// Weights are those that count, in thousandths.
	Weights  Weights
	Strategy Strategy
	// Levels are the keys over which replicas of the workload are levelled, the
	// first first, and LevelsNodes whether they are levelled over nodes after that.
	Levels      []string
	LevelsNodes bool
	// Quota says what of the namespace's quota is used up: then none is placed.
	Quota string
	// All counts the nodes, Taking those that would take the replica as they are,
	// and Yielding those that would if others were pushed out.
	All, Taking, Yielding int
	// Nodes are told of by rank, and then those that refuse, by name.
	Nodes []Judgement
	// Groups has the nodes that would not take it as they are, by the first filter
	// that refuses them.
	Groups []Group
	// Help says in sentences what would make room, if no node has any.
	Help []string
}

// Judgement is what a view says about one node.
type Judgement struct {
	// Node is the uid.
	Node     string
	NodeName string
	// Rank is the place among the nodes that would take the replica, beginning with
	// 1; those that others must be pushed out of come last. It is 0 for nodes that
	// refuse.
	Rank int
	// Score is that of a node which would take the replica as it is, and Same counts
	// the replicas of the workload in the same places, by Levels of the explanation.
	Score Score
	Same  []int32
	// Refusals are of all filters, and Preemptions are who would have to go.
	Refusals    []Refusal
	Preemptions []Preemption
}

// Explain judges every node for one more replica. The view is afterwards as it
// was before.
func (v *View) Explain(q Question) Explanation {
	v.refresh()
	s := v.enter(q.Revision)
	for _, uid := range q.Without {
		if at, known := v.work.byUID[uid]; known {
			v.evict(at)
		}
	}
	p := &v.place
	p.begin(v, s)
	e := p.explain(&q)
	v.rollback()
	v.leave(s)
	return e
}

// ground is what all judgements of an ask rest on.
func (p *placing) ground() Explanation {
	e := Explanation{
		Weights: p.weights, Strategy: p.rev.Wishes.Strategy, LevelsNodes: p.use != tight,
		Quota: p.shape.space.explain(&p.need), All: len(p.v.order),
	}
	if e.Strategy == "" {
		e.Strategy = Pack
	}
	for k := range p.levels {
		e.Levels = append(e.Levels, p.axes[p.levels[k].axis].key)
	}
	return e
}

func (p *placing) explain(q *Question) Explanation {
	e := p.ground()
	told := map[int32]bool{}
	for _, uid := range q.Nodes {
		if i, known := p.v.slots[uid]; known {
			told[i] = true
		}
	}
	taking, yielding, refusing := p.sorted()
	e.Taking, e.Yielding = len(taking), len(yielding)
	for k, i := range slices.Concat(taking, yielding) {
		if q.tells(k) || told[i] {
			e.Nodes = append(e.Nodes, p.judgement(i, k+1, k < len(taking)))
		}
	}
	groups := grouping{}
	for k, i := range refusing {
		if q.tells(k) || told[i] {
			e.Nodes = append(e.Nodes, p.judgement(i, 0, false))
		}
	}
	for _, i := range p.v.order {
		groups.add(p, i)
	}
	e.Groups = groups.list()
	if e.Taking+e.Yielding == 0 || e.Quota != "" {
		e.Help = p.help(e.Quota)
		if e.Taking == 0 {
			e.Help = append(e.Help, p.furtherHelp()...)
		}
		if len(e.Help) == 0 {
			e.Help = p.nearest()
		}
	}
	return e
}

func (q *Question) tells(k int) bool { return q.Most == 0 || k < q.Most }

// rival is a node that would take the replica, with what it is ranked by.
type rival struct {
	node, group int32
	candidate
}

func (p *placing) rival(i int32) rival {
	of := &p.verdicts[p.v.class[i]]
	return rival{node: i, group: of.group, candidate: p.candidate(i, of)}
}

// takes reports whether a node would take the replica as it is.
func (p *placing) takes(i int32) bool {
	of := &p.verdicts[p.v.class[i]]
	return of.passes && p.passesNode(i) && p.open(of.group)
}

// leads reports whether a is taken rather than b.
func (p *placing) leads(a, b *rival) bool {
	return p.before(a.candidate, a.group, b.candidate, b.group)
}

// sorted has the nodes that would take the replica, the best first, those that
// would if others were pushed out, the cheapest first, and those that refuse it,
// by name.
func (p *placing) sorted() (taking, yielding, refusing []int32) {
	var rivals []rival
	var open offers
	var victims victims
	for _, i := range p.v.order {
		if p.takes(i) {
			rivals = append(rivals, p.rival(i))
			continue
		}
		if p.mayPreempt() {
			if o, possible := p.offer(i, &victims); possible {
				open = append(open, o)
				continue
			}
		}
		refusing = append(refusing, i)
	}
	slices.SortFunc(rivals, func(a, b rival) int {
		switch {
		case p.leads(&a, &b):
			return -1
		case p.leads(&b, &a):
			return 1
		default:
			return 0
		}
	})
	for _, r := range rivals {
		taking = append(taking, r.node)
	}
	sort.Sort(open)
	for _, o := range open {
		yielding = append(yielding, p.v.order[o.rank()])
	}
	return taking, yielding, refusing
}

// Review is how the node of a replica stands among all nodes, if the replica were
// placed anew. Explanation has no nodes and no groups here.
type Review struct {
	Explanation
	// Own is the replica's node. Other is the first of the nodes that would take it,
	// or the second if the own one is first; it has no rank if there is none.
	Own, Other Judgement
	// Pushes is whether others may be pushed out for it. They are not here: the nodes
	// that take it do so as they are.
	Pushes bool
}

// Review judges where a replica is: what would come of it, were it placed now.
// It reports whether the replica is in the view.
func (v *View) Review(uid string) (Review, bool) {
	at, known := v.work.byUID[uid]
	if !known {
		return Review{}, false
	}
	v.refresh()
	own, s := v.work.at(at).node, v.enter(v.work.at(at).shape.Revision)
	v.evict(at)
	p := &v.place
	p.begin(v, s)
	stands := p.review(own)
	v.rollback()
	v.leave(s)
	return stands, true
}

// review finds a node's rank without putting all others in order.
func (p *placing) review(own int32) Review {
	s := Review{Explanation: p.ground(), Pushes: p.mayPreempt()}
	mine, rank, taking := p.rival(own), 1, 0
	var best, second *rival
	for _, i := range p.v.order {
		if !p.takes(i) {
			continue
		}
		taking++
		r := p.rival(i)
		if i != own && p.leads(&r, &mine) {
			rank++
		}
		switch {
		case best == nil || p.leads(&r, best):
			best, second = &r, best
		case second == nil || p.leads(&r, second):
			second = &r
		}
	}
	s.Taking = taking
	if !p.takes(own) {
		rank = 0
	}
	s.Own = p.judgement(own, rank, rank > 0)
	switch {
	case best != nil && best.node != own:
		s.Other = p.judgement(best.node, 1, true)
	case second != nil:
		s.Other = p.judgement(second.node, 2, true)
	}
	return s
}

func (p *placing) judgement(i int32, rank int, takes bool) Judgement {
	j := Judgement{Node: p.v.nodes[i].UID, NodeName: p.v.nodes[i].Name, Rank: rank}
	if takes {
		j.Score = p.score(i)
		group := p.verdicts[p.v.class[i]].group
		for k := range p.levels {
			j.Same = append(j.Same, at(p.axes[p.levels[k].axis].mine, p.domain(group, p.levels[k].axis)))
		}
		return j
	}
	j.Refusals = p.refusals(i)
	if rank > 0 {
		var victims victims
		p.offer(i, &victims)
		for _, at := range victims.taken {
			j.Preemptions = append(j.Preemptions, p.preemption(i, at, 0))
		}
	}
	return j
}

// String joins the sentences of the filters.
func (j *Judgement) String() string { return NodeReason{Refusals: j.Refusals}.String() }

// component is one part of the score.
type component struct {
	name         string
	value, times int32
}

func (e *Explanation) components(s *Score) [5]component {
	return [5]component{
		{"locality", s.Locality, e.Weights.Locality},
		{"reliability", s.Reliability, e.Weights.Reliability},
		{"cost", s.Cost, e.Weights.Cost},
		{"utilization", s.Utilization, e.Weights.Utilization},
		{"network", s.Network, e.Weights.Network},
	}
}

// Why says what puts one node before another of a higher rank, or of none: the
// first thing in which they differ, as the order of the ranks has it.
func (e *Explanation) Why(first, second *Judgement) string {
	a, b := &first.Score, &second.Score
	other := second.NodeName
	switch {
	case second.Rank == 0:
		return other + " refuses: " + second.String()
	case len(second.Refusals) > 0 && len(first.Refusals) > 0:
		return fmt.Sprintf("%s would have to go, on %s %s", e.losses(first), other, e.losses(second))
	case len(second.Refusals) > 0:
		return fmt.Sprintf("on %s %s would have to go first", other, e.losses(second))
	case a.Affinity != b.Affinity:
		return fmt.Sprintf("its preferences weigh %d, those of %s %d", a.Affinity, other, b.Affinity)
	case a.Avoided != b.Avoided:
		return fmt.Sprintf("it has %s to avoid, %s %d", plural(int(a.Avoided), "taint"), other, b.Avoided)
	}
	for k := range min(len(first.Same), len(second.Same)) {
		if x, y := first.Same[k], second.Same[k]; x != y {
			return fmt.Sprintf("its %s has %s of the workload, that of %s %d", topologyNoun(e.Levels[k]), plural(int(x), "replica"), other, y)
		}
	}
	switch {
	case e.LevelsNodes && a.SameNode != b.SameNode:
		return fmt.Sprintf("it has %s of the workload, %s %d", plural(int(a.SameNode), "replica"), other, b.SameNode)
	case a.Total != b.Total:
		return fmt.Sprintf("its score is %s, that of %s %s, most of all by %s", total(a), other, total(b), e.most(a, b))
	default:
		return fmt.Sprintf("it is equal to %s in all and comes first by name", other)
	}
}

// losses are those who would have to go from a node, in short.
func (e *Explanation) losses(j *Judgement) string {
	if len(j.Preemptions) == 0 {
		return "only those that leave already"
	}
	highest := 0
	for _, victim := range j.Preemptions {
		highest = max(highest, victim.Priority)
	}
	return fmt.Sprintf("%s of priority %d", plural(len(j.Preemptions), "replica"), highest)
}

// most is the component that favours one score the most over another.
func (e *Explanation) most(a, b *Score) string {
	mine, others := e.components(a), e.components(b)
	best := 0
	gain := func(k int) int32 { return mine[k].times * (mine[k].value - others[k].value) }
	for k := range mine {
		if gain(k) > gain(best) {
			best = k
		}
	}
	return fmt.Sprintf("%s, %s to %s", mine[best].name, share(mine[best].value), share(others[best].value))
}

// share writes thousandths as a part of 1.
func share(thousandths int32) string {
	return trimmed(fmt.Sprintf("%d.%03d", thousandths/thousandth, thousandths%thousandth))
}

func total(s *Score) string { return trimmed(fmt.Sprintf("%d.%06d", s.Total/1e6, s.Total%1e6)) }

func trimmed(number string) string {
	return strings.TrimSuffix(strings.TrimRight(number, "0"), ".")
}
