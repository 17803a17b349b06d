package scheduler

import (
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Rules about what a node is called are asked of every node: in a class they
// would make each node one of its own.

// singles reports whether the rule is about a label that tells nodes apart.
func (r *Rule) singles() bool { return r.Key == spec.LabelName || r.Key == spec.LabelHostname }

// singleLabel is the value of such a label.
func (n *Node) singleLabel(key string) (value string, has bool) {
	value = n.Name
	if key == spec.LabelHostname {
		value = n.Hostname
	}
	return value, value != ""
}

func (r *Rule) holdsFor(n *Node) bool { return r.accepts(n.singleLabel(r.Key)) }

// callNodes asks the rules of the ask about names, once for each node.
func (p *placing) callNodes() {
	p.otherwise, p.liked = p.otherwise[:0], p.liked[:0]
	rules, prefer := p.rev.Needs.Rules, p.rev.Wishes.Prefer
	if slices.ContainsFunc(rules, func(r Rule) bool { return r.singles() }) {
		p.otherwise = append(p.otherwise, make([]bool, len(p.v.class))...)
	}
	if slices.ContainsFunc(prefer, func(r PreferredRule) bool { return r.singles() }) {
		p.liked = append(p.liked, make([]int32, len(p.v.class))...)
	}
	if len(p.otherwise)+len(p.liked) == 0 {
		return
	}
	for _, i := range p.v.order {
		n := &p.v.nodes[i].Node
		for k := range rules {
			if r := &rules[k]; r.singles() && !r.holdsFor(n) {
				p.otherwise[i] = true
			}
		}
		for k := range prefer {
			if r := &prefer[k]; r.singles() && r.holdsFor(n) {
				p.liked[i] += r.Weight
			}
		}
	}
}

// picks reports whether there are rules that are about single nodes for good.
func (p *placing) picks() bool { return len(p.otherwise) > 0 || p.only != nil }

// picked reports whether those rules leave a node.
func (p *placing) picked(i int32) bool {
	return (len(p.otherwise) == 0 || !p.otherwise[i]) && (p.only == nil || p.only[i])
}

// pickedGroups are the groups with a node that is left: a spread is over those alone.
func (p *placing) pickedGroups() []bool {
	picked := make([]bool, len(p.groups))
	for i, c := range p.v.class {
		if of := &p.verdicts[c]; of.passes && p.picked(int32(i)) {
			picked[of.group] = true
		}
	}
	return picked
}

func passesName(p *placing, i int32) bool { return !p.otherwise[i] }

func explainName(p *placing, i int32) string {
	var reasons []string
	n := &p.v.nodes[i].Node
	for k := range p.rev.Needs.Rules {
		if r := &p.rev.Needs.Rules[k]; r.singles() && !r.holdsFor(n) {
			reasons = append(reasons, r.explain(n.singleLabel(r.Key)))
		}
	}
	return joined(reasons...)
}
