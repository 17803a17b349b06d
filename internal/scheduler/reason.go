package scheduler

import (
	"fmt"
	"strings"
)

// Unplaced is what is left over of an ask, named by its index, and every node
// with what speaks against it, by name.
type Unplaced struct {
	Ask      int
	Workload string
	Name     string
	Count    int
	Nodes    []NodeReason
}

// NodeReason is what speaks against one node. Node is the uid.
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

// String joins the sentences: "needs 500m CPU, 200m of 2 free; label disk=ssd
// is missing".
func (r NodeReason) String() string {
	texts := make([]string, len(r.Refusals))
	for i, one := range r.Refusals {
		texts[i] = one.Reason
	}
	return strings.Join(texts, "; ")
}

func unplaced(views []view, index int, ask *Ask, left int) Unplaced {
	u := Unplaced{Ask: index, Workload: ask.Workload, Name: ask.Name, Count: left, Nodes: make([]NodeReason, len(views))}
	for i := range views {
		v := &views[i]
		u.Nodes[i] = NodeReason{Node: v.UID, NodeName: v.Name, Refusals: refusals(v, &ask.Requirements)}
	}
	return u
}

// Group is the nodes that the same filter refused first.
type Group struct {
	Filter string
	// Nodes are names.
	Nodes []string
	// Example is what the filter said about the first of them.
	Example string
}

// Groups sorts the nodes by the first filter that refused them, in the order of
// the filters.
func (u Unplaced) Groups() []Group {
	var groups []Group
	for _, f := range filters {
		g := Group{Filter: f.name()}
		for _, n := range u.Nodes {
			if len(n.Refusals) == 0 || n.Refusals[0].Filter != g.Filter {
				continue
			}
			if g.Nodes == nil {
				g.Example = n.Refusals[0].Reason
			}
			g.Nodes = append(g.Nodes, n.NodeName)
		}
		if g.Nodes != nil {
			groups = append(groups, g)
		}
	}
	return groups
}

// Summary is one sentence about all nodes.
func (u Unplaced) Summary() string {
	if len(u.Nodes) == 0 {
		return fmt.Sprintf("%s of %s cannot be placed: the cluster has no nodes yet", plural(u.Count, "replica"), u.Name)
	}
	var texts []string
	for _, g := range u.Groups() {
		text := g.Nodes[0] + ": " + g.Example
		if more := len(g.Nodes) - 1; more > 0 {
			text += fmt.Sprintf(" (and %s refused for the like)", plural(more, "more node"))
		}
		texts = append(texts, text)
	}
	return fmt.Sprintf("%s of %s cannot be placed: %s", plural(u.Count, "replica"), u.Name, strings.Join(texts, "; "))
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
