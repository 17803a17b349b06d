package scheduler

import (
	"slices"

	"github.com/cloudless/cloudless/internal/spec"
)

// Rules about a node's name are evaluated for every node: as part of the class they would
// make each node a class of its own.

// identifiesNode reports whether the rule is about a label that identifies a node.
func (r *Rule) identifiesNode() bool { return r.Key == spec.LabelName || r.Key == spec.LabelHostname }

// identifyingLabel is the value of such a label.
func (n *Node) identifyingLabel(key string) (value string, has bool) {
	value = n.Name
	if key == spec.LabelHostname {
		value = n.Hostname
	}
	return value, value != ""
}

func (r *Rule) holdsFor(n *Node) bool { return r.accepts(n.identifyingLabel(r.Key)) }

// judgeNames evaluates the ask's rules about names, once for each node.
func (p *placing) judgeNames() {
	p.otherwise, p.liked = p.otherwise[:0], p.liked[:0]
	rules, prefer := p.rev.Needs.Rules, p.rev.Preferences.Prefer
	if slices.ContainsFunc(rules, func(r Rule) bool { return r.identifiesNode() }) {
		p.otherwise = append(p.otherwise, make([]bool, len(p.v.class))...)
	}
	if slices.ContainsFunc(prefer, func(r PreferredRule) bool { return r.identifiesNode() }) {
		p.liked = append(p.liked, make([]int32, len(p.v.class))...)
	}
	if len(p.otherwise)+len(p.liked) == 0 {
		return
	}
	for _, i := range p.v.order {
		n := &p.v.nodes[i].Node
		for k := range rules {
			if r := &rules[k]; r.identifiesNode() && !r.holdsFor(n) {
				p.otherwise[i] = true
			}
		}
		for k := range prefer {
			if r := &prefer[k]; r.identifiesNode() && r.holdsFor(n) {
				p.liked[i] += r.Weight
			}
		}
	}
}

// picks reports whether required rules select single nodes.
func (p *placing) picks() bool { return len(p.otherwise) > 0 || p.only != nil }

// picked reports whether those rules allow a node.
func (p *placing) picked(i int32) bool {
	return (len(p.otherwise) == 0 || !p.otherwise[i]) && (p.only == nil || p.only[i])
}

// pickedGroups are the groups with an allowed node: a spread covers only those.
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
		if r := &p.rev.Needs.Rules[k]; r.identifiesNode() && !r.holdsFor(n) {
			reasons = append(reasons, r.explain(n.identifyingLabel(r.Key)))
		}
	}
	return joined(reasons...)
}
