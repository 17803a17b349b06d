package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cloudless/cloudless/internal/spec"
)

// Unplaced is what is left over of an ask, named by its index, and why the nodes refuse it.
type Unplaced struct {
	Ask      int
	Workload string
	Name     string
	Count    int
	// Quota says which part of the namespace's quota is used up, and is empty if that is
	// not the reason. The nodes are examined all the same.
	Quota string
	// Groups has the nodes by the first filter that refused them, in the order of the
	// filters.
	Groups []Group
	// Nodes has every node, by name, if reasons were asked for.
	Nodes []NodeReason
}

// NodeReason is why one node refuses. Node is the uid.
type NodeReason struct {
	Node     string
	NodeName string
	Refusals []Refusal
}

// Refusal is one filter's sentence, continuing the node's name.
type Refusal struct {
	Filter string
	Reason string
}

// Group is the nodes that the same filter refused first.
type Group struct {
	Filter string
	Count  int
	// Example is what the filter said about the first of them, by name.
	NodeName string
	Example  string
}

// String joins the sentences: "needs 500m CPU, 200m of 2 free; label disk=ssd is missing".
func (r NodeReason) String() string {
	texts := make([]string, len(r.Refusals))
	for i, one := range r.Refusals {
		texts[i] = one.Reason
	}
	return strings.Join(texts, "; ")
}

// unplaced explains what is left over, given the current view.
func (p *placing) unplaced(index, left int, reasons bool) Unplaced {
	u := Unplaced{
		Ask: index, Workload: p.rev.Workload, Name: p.rev.Name, Count: left, Quota: p.shape.space.explain(&p.need),
	}
	groups := grouping{}
	for _, i := range p.v.order {
		groups.add(p, i)
		if reasons {
			u.Nodes = append(u.Nodes, NodeReason{Node: p.v.nodes[i].UID, NodeName: p.v.nodes[i].Name, Refusals: p.refusals(i)})
		}
	}
	u.Groups = groups.list()
	return u
}

// grouping counts nodes by the filter that refuses them first.
type grouping map[string]*Group

// add counts a node. It builds the explanation only for the first node of a group.
func (g grouping) add(p *placing, i int32) {
	first := p.firstRefusal(i)
	switch {
	case first == "":
	case g[first] == nil:
		g[first] = &Group{Filter: first, Count: 1, NodeName: p.v.nodes[i].Name, Example: p.refusals(i)[0].Reason}
	default:
		g[first].Count++
	}
}

// list has the groups in the order of the filters.
func (g grouping) list() (all []Group) {
	for _, name := range filterNames {
		if one := g[name]; one != nil {
			all = append(all, *one)
		}
	}
	return all
}

// Summary is one sentence about all nodes.
func (u Unplaced) Summary() string {
	text := fmt.Sprintf("%s of %s cannot be placed: ", spec.Count(u.Count, "replica"), u.Name)
	if u.Quota != "" {
		return text + u.Quota
	}
	if len(u.Groups) == 0 {
		return text + "the cluster has no nodes yet"
	}
	var texts []string
	for _, g := range u.Groups {
		one := g.NodeName + ": " + g.Example
		if more := g.Count - 1; more > 0 {
			one += fmt.Sprintf(" (and %s refused for the like)", spec.Count(more, "more node"))
		}
		texts = append(texts, one)
	}
	return text + strings.Join(texts, "; ")
}

// MainReason is the filter that refused most nodes, "quota" if that is used up, and "nodes"
// if there are none.
func (u Unplaced) MainReason() string {
	switch {
	case u.Quota != "":
		return "quota"
	case len(u.Groups) == 0:
		return "nodes"
	}
	return slices.MaxFunc(u.Groups, func(a, b Group) int { return cmp.Compare(a.Count, b.Count) }).Filter
}
