package placement

import (
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
)

// daemonNode is one node as seen by a daemon.
type daemonNode struct {
	scheduler.Suit
	// judged is the verdict as if the daemon had no replica anywhere.
	judged *scheduler.Judgement
	// has is whether the node has a replica, and current whether that is of the desired
	// revision.
	has, current bool
}

// suits is whether the node should have a replica.
func (g *daemonNode) suits() bool { return g.Takes || g.Keeps && g.has }

// sentence says why a daemon's replica is on the node.
func (g daemonNode) sentence(away bool) string {
	switch {
	case !g.Keeps:
		return fmt.Sprintf("%s does not suit it any more: %s; it is about to be stopped", g.NodeName, g.judged)
	case away:
		return fmt.Sprintf("it is a daemon, and its place is on %s, which %s", g.NodeName, g.judged)
	case !g.Takes:
		return fmt.Sprintf("it is a daemon, and %s keeps it, but would take no new one today: %s", g.NodeName, g.judged)
	}
	return fmt.Sprintf("it is a daemon, and %s suits it", g.NodeName)
}

// survey examines all nodes for the daemon, sorted by name.
func (x *explainer) survey() (all []daemonNode) {
	has := map[string]bool{} // by node: whether its replica is current
	var own []string
	for _, r := range x.placed {
		node := r.GetSpec().GetNodeUid()
		has[node] = has[node] || r.GetSpec().GetRevisionUid() == x.workload.GetStatus().GetRevisionUid()
		own = append(own, r.GetMetadata().GetUid())
	}
	judged := map[string]*scheduler.Judgement{}
	e := x.cluster.View.Explain(scheduler.Question{Revision: x.revision, Without: own})
	for k := range e.Nodes {
		judged[e.Nodes[k].Node] = &e.Nodes[k]
	}
	x.each = map[string]daemonNode{}
	for _, s := range x.cluster.View.Suits(x.revision) {
		g := daemonNode{Suit: s, judged: judged[s.Node]}
		g.current, g.has = has[s.Node]
		x.each[s.Node] = g
		all = append(all, g)
	}
	return all
}

// judgeEach asks each node whether it should have a replica of a daemon and whether it can.
// It returns a function that computes what would help the nodes that cannot.
func (x *explainer) judgeEach(answer *v1.Explanation) (help func() []string) {
	answer.About, answer.EveryNode = "one of its own", true
	could := x.possible()
	var fine, cannot, unsuited []*v1.NodeExplanation
	lacking := map[string]bool{}
	for _, g := range x.survey() {
		described := &v1.NodeExplanation{Node: g.NodeName, Suits: g.suits()}
		refusals, yields := could.judge(&g)
		described.Refusals = refusalsProto(refusals)
		answer.NodeCount++
		if described.Suits {
			answer.SuitingCount++
		}
		switch {
		case len(refusals) == 0 && yields:
			answer.YieldingCount++
		case len(refusals) == 0:
			answer.TakingCount++
		default:
			group(answer, described)
		}
		switch {
		case x.only != "" && x.only != g.Node:
		case len(refusals) == 0:
			described.Rank = 1
			fine = append(fine, described)
		case described.Suits:
			lacking[g.Node] = true
			cannot = append(cannot, described)
		default:
			unsuited = append(unsuited, described)
		}
	}
	for _, some := range [][]*v1.NodeExplanation{fine, cannot, unsuited} {
		if !x.all {
			some = some[:min(maxNodes, len(some))]
		}
		answer.Nodes = append(answer.Nodes, some...)
	}
	return func() []string { return x.helpOn(lacking, answer.GetQuota()) }
}

// group counts a refusing node under the first filter that refuses.
func group(answer *v1.Explanation, n *v1.NodeExplanation) {
	first := n.GetRefusals()[0]
	for _, g := range answer.GetRefused() {
		if g.GetFilter() == first.GetFilter() {
			g.Count++
			return
		}
	}
	answer.Refused = append(answer.Refused, &v1.RefusalGroup{Filter: first.GetFilter(), Count: 1, Node: n.GetNode(), Reason: first.GetReason()})
}

func refusalsProto(all []scheduler.Refusal) (described []*v1.Refusal) {
	for _, r := range all {
		described = append(described, &v1.Refusal{Filter: r.Filter, Reason: r.Reason})
	}
	return described
}

// possibilities is what a plan says about the nodes that it was asked for.
type possibilities struct {
	yields  map[string]bool // nodes with a place; true if others must be evicted first
	refused map[string][]scheduler.Refusal
}

func (x *explainer) possible() possibilities {
	p := possibilities{yields: map[string]bool{}, refused: map[string][]scheduler.Refusal{}}
	for _, at := range x.outlook.Placements {
		p.yields[at.Node] = at.Preempts
	}
	for _, at := range x.outlook.Held {
		p.yields[at.Node] = true
	}
	for _, u := range x.outlook.Unplaced {
		for _, n := range u.Nodes {
			if p.refused[n.Node] = n.Refusals; len(n.Refusals) == 0 {
				p.refused[n.Node] = []scheduler.Refusal{{Filter: "quota", Reason: u.Quota}}
			}
		}
	}
	return p
}

// judge returns why a replica does not fit on a node, or whether others must be evicted
// first.
func (p *possibilities) judge(g *daemonNode) (refusals []scheduler.Refusal, yields bool) {
	if !g.suits() {
		return g.judged.Refusals, false
	}
	if g.has && g.current {
		return nil, false
	}
	if refused := p.refused[g.Node]; refused != nil {
		return refused, false
	}
	if yields, placed := p.yields[g.Node]; placed {
		return nil, yields
	}
	if g.judged.Rank > 0 { // for a successor, or as soon as a stopping replica is gone
		return nil, len(g.judged.Refusals) > 0
	}
	return g.judged.Refusals, false
}

// onlyHere is the part of the outlook that concerns the one node to report.
func (x *explainer) onlyHere() (waiting []*v1.Replica, plan scheduler.Plan, some bool) {
	for _, r := range x.waiting {
		if r.GetSpec().GetOnlyNodeUid() == x.only {
			waiting = append(waiting, r)
		}
	}
	for _, p := range x.outlook.Placements {
		if p.Node == x.only {
			plan.Placements = append(plan.Placements, p)
		}
	}
	for _, h := range x.outlook.Held {
		if h.Node == x.only {
			plan.Held = append(plan.Held, h)
		}
	}
	for _, u := range x.outlook.Unplaced {
		for _, n := range u.Nodes {
			if n.Node == x.only {
				one := scheduler.Group{Count: 1, NodeName: n.NodeName, Example: n.String()}
				plan.Unplaced = append(plan.Unplaced, scheduler.Unplaced{Name: u.Name, Count: 1, Quota: u.Quota, Groups: []scheduler.Group{one}})
			}
		}
	}
	return waiting, plan, len(plan.Placements)+len(plan.Held)+len(plan.Unplaced) > 0
}

// helpOn computes what would help on some nodes. It removes the others from the view, so
// that nothing is suggested about them.
func (x *explainer) helpOn(lacking map[string]bool, quota string) []string {
	if len(lacking) == 0 {
		return nil
	}
	help := x.quotaHelp(quota, nil)
	for node := range x.each {
		if !lacking[node] {
			x.cluster.View.RemoveNode(node)
		}
	}
	x.outlook.Placements = slices.DeleteFunc(x.outlook.Placements, func(p scheduler.Placement) bool { return !lacking[p.Node] })
	return append(help, x.helpAfter(scheduler.Question{Revision: x.revision, Without: UIDsOf(x.placed), Most: scheduler.NoNodes})...)
}
