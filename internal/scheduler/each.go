package scheduler

import "slices"

// serveEach places an ask that is for certain nodes, one replica on each. It makes no
// choice, so it looks only at those nodes.
func (v *View) serveEach(plan *Plan, r *Request, index int, s *shape) {
	on := r.Asks[index].On
	for _, uid := range r.Asks[index].Held {
		node := v.nodeOf(uid)
		if v.hold(plan, index, s, uid, true) {
			on = append(slices.Clip(on), node)
		}
	}
	p := &v.place
	p.begin(v, s)
	var victims victims
	var refused []NodeReason
	for _, uid := range on {
		i, known := v.slots[uid]
		switch {
		case !known:
			refused = append(refused, NodeReason{Node: uid, Refusals: []Refusal{{Filter: nodeGone, Reason: "does not exist any more"}}})
		case s.space.room(&p.need) == 0:
			refused = append(refused, p.refusedBy(i))
		case p.takesNow(i):
			plan.Placements = append(plan.Placements, Placement{Ask: index, Node: uid, NodeName: v.nodes[i].Name, Score: p.score(i)})
			p.take(i, p.verdicts[v.class[i]].group)
		default:
			if !r.Asks[index].Modest && p.mayPreempt() {
				if _, possible := p.offer(i, &victims); possible {
					p.carryOut(plan, index, i, victims.taken)
					continue
				}
			}
			refused = append(refused, p.refusedBy(i))
		}
	}
	if len(refused) > 0 {
		plan.Unplaced = append(plan.Unplaced, p.unplacedOn(index, refused))
	}
}

// nodeOf is the uid of a replica's node, empty if it has none.
func (v *View) nodeOf(uid string) string {
	at, known := v.work.byUID[uid]
	if !known {
		return ""
	}
	return v.nodes[v.work.at(at).node].UID
}

// nodeGone stands in for a filter if a node does not exist.
const nodeGone = "nodes"

// takesNow reports whether a node would take a replica without preemption.
func (p *placing) takesNow(i int32) bool {
	of := &p.verdicts[p.v.class[i]]
	return of.passes && p.open(of.group) && p.passesNode(i)
}

func (p *placing) refusedBy(i int32) NodeReason {
	return NodeReason{Node: p.v.nodes[i].UID, NodeName: p.v.nodes[i].Name, Refusals: p.refusals(i)}
}

// unplacedOn explains why certain nodes did not take their replicas.
func (p *placing) unplacedOn(index int, refused []NodeReason) Unplaced {
	u := Unplaced{
		Ask: index, Workload: p.rev.Workload, Name: p.rev.Name, Count: len(refused), Quota: p.shape.space.explain(&p.need), Nodes: refused,
	}
	groups := map[string]*Group{}
	for _, one := range refused {
		if len(one.Refusals) == 0 {
			continue // only the quota refuses it
		}
		first := one.Refusals[0]
		if groups[first.Filter] == nil {
			groups[first.Filter] = &Group{Filter: first.Filter, NodeName: one.NodeName, Example: first.Reason}
		}
		groups[first.Filter].Count++
	}
	for _, name := range append([]string{nodeGone}, filterNames...) {
		if g := groups[name]; g != nil {
			u.Groups = append(u.Groups, *g)
			delete(groups, name) // some names come twice
		}
	}
	return u
}

// Suit says whether a node suits a workload that should run on every suitable node,
// whatever is free there.
type Suit struct {
	// Node is the uid.
	Node, NodeName string
	// Takes is whether the node should have a replica; Keeps whether an existing one may
	// stay. A node keeps its replica while it is cordoned, under pressure, offline, without
	// its driver for a while, or has a NoSchedule taint or a NoExecute taint that is
	// tolerated for some time.
	Takes, Keeps bool
}

// Suits returns the Suit of every node, by name.
func (v *View) Suits(r *Revision) []Suit {
	p := placing{v: v, rev: r, need: r.Needs.Resources}
	byClass := make([]Suit, len(v.classes.list))
	for id, c := range v.classes.list {
		if c != nil {
			byClass[id].Takes, byClass[id].Keeps = p.stands(c)
		}
	}
	all := make([]Suit, 0, len(v.order))
	for _, i := range v.order {
		all = append(all, byClass[v.class[i]].of(r, &v.nodes[i].Node))
	}
	return all
}

// SuitOf is Suits for one node without a view.
func SuitOf(r *Revision, n *Node) Suit {
	p := placing{rev: r, need: r.Needs.Resources}
	var s Suit
	s.Takes, s.Keeps = p.stands(&class{
		ready: n.Unschedulable == "", labels: n.Labels, region: n.Region, zone: n.Zone, taints: n.Taints,
		drivers: n.Drivers, platform: n.Platform, gpuModel: n.GPUModel,
	})
	return s.of(r, n)
}

// of refines the Suit of a class for one of its nodes: there may be rules about its name.
func (s Suit) of(r *Revision, n *Node) Suit {
	s.Node, s.NodeName = n.UID, n.Name
	for k := range r.Needs.Rules {
		if rule := &r.Needs.Rules[k]; rule.identifiesNode() && !rule.holdsFor(n) {
			s.Takes, s.Keeps = false, false
		}
	}
	if s.Takes && r.Needs.Policy != nil && r.Needs.Policy(n) != "" {
		s.Takes = false // what runs there stays
	}
	return s
}

// temporaryFilters are the filters that may refuse a node only temporarily: they keep replicas from
// coming, and do not evict any.
var temporaryFilters = map[string]bool{"ready": true, "driver": true, "platform": true, "gpu": true, "taints": true}

// stands evaluates the rules for a class. The placing has only a revision.
func (p *placing) stands(c *class) (takes, keeps bool) {
	takes, keeps = true, true
	for _, f := range classFilters {
		if f.applies(p) && !f.passes(p, c) {
			takes = false
			keeps = keeps && temporaryFilters[f.name]
		}
	}
	for _, t := range c.taints {
		seconds, forever := Tolerates(p.rev.Needs.Tolerations, t)
		keeps = keeps && (t.Effect != NoExecute || forever || seconds > 0)
	}
	return takes, keeps
}
