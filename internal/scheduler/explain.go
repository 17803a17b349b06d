package scheduler

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/cloudless/cloudless/internal/spec"
)

// Question asks how every node is judged for one more replica of a revision.
type Question struct {
	Revision *Revision
	// Without are uids of replicas to ignore, as in a Request.
	Without []string
	// Most bounds how many nodes are listed that would take the replica, and how many that
	// refuse; 0 means all, NoNodes none.
	Most int
	// Nodes are uids of nodes that are always listed.
	Nodes []string
}

// NoNodes lists only the nodes that are asked for by uid.
const NoNodes = -1

// Explanation judges every node for one more replica. A plan for it takes the node of rank
// 1, unless the quota is used up.
type Explanation struct {
	// Weights are the effective ones, in thousandths.
	Weights  Weights
	Strategy Strategy
	// Levels are the keys over which replicas of the workload are levelled, in order of
	// importance; LevelsNodes is whether they are levelled over nodes after that.
	Levels      []string
	LevelsNodes bool
	// Quota says which part of the namespace's quota is used up: then no replica is placed.
	Quota string
	// All counts the nodes, Taking those that would take the replica as they are, and
	// Yielding those that would after preemption.
	All, Taking, Yielding int
	// Nodes are listed by rank, and then those that refuse, by name.
	Nodes []Judgement
	// Groups has the nodes that would not take it as they are, by the first filter that
	// refuses them.
	Groups []Group
	// Help says in sentences what would make room, if no node has any.
	Help []string
}

// Judgement is the verdict about one node.
type Judgement struct {
	// Node is the uid.
	Node     string
	NodeName string
	// Rank is the place among the nodes that would take the replica, beginning with 1;
	// nodes that need preemption come last. It is 0 for nodes that refuse.
	Rank int
	// Score is that of a node which would take the replica as it is. Same counts the
	// replicas of the workload in the same domains, by Levels of the explanation.
	Score Score
	Same  []int32
	// Refusals are from all filters, and Preemptions are the victims.
	Refusals    []Refusal
	Preemptions []Preemption
}

// Explain judges every node for one more replica. It leaves the view unchanged.
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

// newExplanation is the part that all judgements of an ask share.
func (p *placing) newExplanation() Explanation {
	e := Explanation{
		Weights: p.weights, Strategy: p.rev.Preferences.Strategy, LevelsNodes: p.use != tight,
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
	e := p.newExplanation()
	listed := map[int32]bool{}
	for _, uid := range q.Nodes {
		if i, known := p.v.slots[uid]; known {
			listed[i] = true
		}
	}
	taking, yielding, refusing := p.sorted()
	e.Taking, e.Yielding = len(taking), len(yielding)
	for k, i := range slices.Concat(taking, yielding) {
		if q.lists(k) || listed[i] {
			e.Nodes = append(e.Nodes, p.judgement(i, k+1, k < len(taking)))
		}
	}
	groups := grouping{}
	for k, i := range refusing {
		if q.lists(k) || listed[i] {
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

func (q *Question) lists(k int) bool { return q.Most == 0 || k < q.Most }

// rival is a node that would take the replica, with its ranking.
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

// better reports whether a is better than b.
func (p *placing) better(a, b *rival) bool {
	return p.before(a.candidate, a.group, b.candidate, b.group)
}

// sorted lists the nodes that would take the replica, best first, those that would after
// preemption, cheapest first, and those that refuse it, by name.
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
		case p.better(&a, &b):
			return -1
		case p.better(&b, &a):
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

// Review ranks a replica's node as if the replica were placed again. Its Explanation has no
// nodes and no groups.
type Review struct {
	Explanation
	// Own is the replica's node. Other is the best other node that would take it; its rank
	// is 0 if there is none.
	Own, Other Judgement
	// Pushes is whether the replica may preempt others. The review itself assumes no
	// preemption.
	Pushes bool
}

// Review judges a replica's node as if the replica were placed now. It reports whether the
// replica is in the view.
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

// review finds a node's rank without sorting all others.
func (p *placing) review(own int32) Review {
	s := Review{Explanation: p.newExplanation(), Pushes: p.mayPreempt()}
	mine, rank, taking := p.rival(own), 1, 0
	var best, second *rival
	for _, i := range p.v.order {
		if !p.takes(i) {
			continue
		}
		taking++
		r := p.rival(i)
		if i != own && p.better(&r, &mine) {
			rank++
		}
		switch {
		case best == nil || p.better(&r, best):
			best, second = &r, best
		case second == nil || p.better(&r, second):
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

// Why says what puts one node before another of a lower rank, or of none: the first
// criterion in which they differ, in ranking order.
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
		return fmt.Sprintf("it has %s to avoid, %s %d", spec.Count(int(a.Avoided), "taint"), other, b.Avoided)
	}
	for k := range min(len(first.Same), len(second.Same)) {
		if x, y := first.Same[k], second.Same[k]; x != y {
			return fmt.Sprintf("its %s has %s of the workload, that of %s %d", topologyNoun(e.Levels[k]), spec.Count(int(x), "replica"), other, y)
		}
	}
	switch {
	case e.LevelsNodes && a.SameNode != b.SameNode:
		return fmt.Sprintf("it has %s of the workload, %s %d", spec.Count(int(a.SameNode), "replica"), other, b.SameNode)
	case a.Total != b.Total:
		return fmt.Sprintf("its score is %s, that of %s %s, most of all by %s", total(a), other, total(b), e.most(a, b))
	default:
		return fmt.Sprintf("it is equal to %s in all and comes first by name", other)
	}
}

// losses summarizes the victims on a node.
func (e *Explanation) losses(j *Judgement) string {
	if len(j.Preemptions) == 0 {
		return "only those that leave already"
	}
	highest := 0
	for _, victim := range j.Preemptions {
		highest = max(highest, victim.Priority)
	}
	return fmt.Sprintf("%s of priority %d", spec.Count(len(j.Preemptions), "replica"), highest)
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

// share formats thousandths as a fraction of 1.
func share(thousandths int32) string {
	return trimmed(fmt.Sprintf("%d.%03d", thousandths/thousandth, thousandths%thousandth))
}

func total(s *Score) string { return trimmed(fmt.Sprintf("%d.%06d", s.Total/1e6, s.Total%1e6)) }

func trimmed(number string) string {
	return strings.TrimSuffix(strings.TrimRight(number, "0"), ".")
}
