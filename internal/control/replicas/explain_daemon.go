package replicas

import (
	"fmt"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
)

// ground is what one node is to a daemon.
type ground struct {
	scheduler.Suit
	// judged is how it would be if the daemon had no replica anywhere.
	judged *scheduler.Judgement
	// has is whether a replica is there, and current whether it is of the revision
	// that should run.
	has, current bool
}

// suits is whether a replica should be there.
func (g *ground) suits() bool { return g.Takes || g.Keeps && g.has }

// sentence says why a replica of a daemon is on the node.
func (g ground) sentence(away bool) string {
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

// survey finds what every node is to the daemon, by name.
func (x *inquiry) survey() (all []ground) {
	has := map[string]bool{} // nodes, with whether it is a current one
	var own []string
	for _, r := range x.placed {
		node := r.GetSpec().GetNodeUid()
		has[node] = has[node] || r.GetSpec().GetRevisionUid() == x.workload.GetStatus().GetRevisionUid()
		own = append(own, r.GetMetadata().GetUid())
	}
	judged := map[string]*scheduler.Judgement{}
	e := x.cluster.view.Explain(scheduler.Question{Revision: x.revision, Without: own})
	for k := range e.Nodes {
		judged[e.Nodes[k].Node] = &e.Nodes[k]
	}
	x.each = map[string]ground{}
	for _, s := range x.cluster.view.Suits(x.revision) {
		g := ground{Suit: s, judged: judged[s.Node]}
		g.current, g.has = has[s.Node]
		x.each[s.Node] = g
		all = append(all, g)
	}
	return all
}

// judgeEach asks each node for itself whether it should have a replica of a daemon
// and whether it can, and returns what says what would help those that cannot.
func (x *inquiry) judgeEach(answer *v1.Explanation) (help func() []string) {
	answer.About, answer.EveryNode = "one of its own", true
	could := x.possible()
	var fine, cannot, unsuited []*v1.NodeExplanation
	lacking := map[string]bool{}
	for _, g := range x.survey() {
		told := &v1.NodeExplanation{Node: g.NodeName, Suits: g.suits()}
		refusals, yields := could.judge(&g)
		told.Refusals = refusalsProto(refusals)
		answer.NodeCount++
		if told.Suits {
			answer.SuitingCount++
		}
		switch {
		case len(refusals) == 0 && yields:
			answer.YieldingCount++
		case len(refusals) == 0:
			answer.TakingCount++
		default:
			group(answer, told)
		}
		switch {
		case x.only != "" && x.only != g.Node:
		case len(refusals) == 0:
			told.Rank = 1
			fine = append(fine, told)
		case told.Suits:
			lacking[g.Node] = true
			cannot = append(cannot, told)
		default:
			unsuited = append(unsuited, told)
		}
	}
	for _, some := range [][]*v1.NodeExplanation{fine, cannot, unsuited} {
		if !x.all {
			some = some[:min(toldNodes, len(some))]
		}
		answer.Nodes = append(answer.Nodes, some...)
	}
	return func() []string { return x.helpOn(lacking, answer.GetQuota()) }
}

// group counts a node that refuses by the first filter that does so.
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

func refusalsProto(all []scheduler.Refusal) (told []*v1.Refusal) {
	for _, r := range all {
		told = append(told, &v1.Refusal{Filter: r.Filter, Reason: r.Reason})
	}
	return told
}

// possibilities are what a plan says about the nodes that it was asked for.
type possibilities struct {
	yields  map[string]bool // nodes with a place, and whether others have to go
	refused map[string][]scheduler.Refusal
}

func (x *inquiry) possible() possibilities {
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

// judge is what speaks against a replica on a node, or whether others have to go.
func (p *possibilities) judge(g *ground) (refusals []scheduler.Refusal, yields bool) {
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
	if g.judged.Rank > 0 { // for a successor, or as soon as one that stops is gone
		return nil, len(g.judged.Refusals) > 0
	}
	return g.judged.Refusals, false
}

// onlyHere is the part of the outlook that is about the only node to tell of.
func (x *inquiry) onlyHere() (waiting []*v1.Replica, plan scheduler.Plan, some bool) {
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

// helpOn is what would help on some nodes. The others are taken out of the view, so
// that nothing is said about them.
func (x *inquiry) helpOn(lacking map[string]bool, quota string) []string {
	if len(lacking) == 0 {
		return nil
	}
	help := x.quotaHelp(quota, nil)
	for node := range x.each {
		if !lacking[node] {
			x.cluster.view.RemoveNode(node)
		}
	}
	x.outlook.Placements = slices.DeleteFunc(x.outlook.Placements, func(p scheduler.Placement) bool { return !lacking[p.Node] })
	return append(help, x.helpAfter(scheduler.Question{Revision: x.revision, Without: uidsOf(x.placed), Most: scheduler.NoNodes})...)
}
