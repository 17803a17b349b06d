package scheduler

import "slices"

// serveEach places an ask that is for certain nodes, one replica on each. Nothing is
// chosen, so that only those nodes are looked at.
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
			if p.mayPreempt() {
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

// nodeOf is the uid of the node that a replica is on, empty if there is none.
func (v *View) nodeOf(uid string) string {
	at, known := v.work.byUID[uid]
	if !known {
		return ""
	}
	return v.nodes[v.work.at(at).node].UID
}

// nodeGone stands in the place of a filter for a node that is not there.
const nodeGone = "nodes"

// takesNow reports whether a node would take a replica without anybody going.
func (p *placing) takesNow(i int32) bool {
	of := &p.verdicts[p.v.class[i]]
	return of.passes && p.open(of.group) && p.passesNode(i)
}

func (p *placing) refusedBy(i int32) NodeReason {
	return NodeReason{Node: p.v.nodes[i].UID, NodeName: p.v.nodes[i].Name, Refusals: p.refusals(i)}
}

// unplacedOn explains what certain nodes did not take.
func (p *placing) unplacedOn(index int, refused []NodeReason) Unplaced {
	u := Unplaced{
		Ask: index, Workload: p.rev.Workload, Name: p.rev.Name, Count: len(refused), Quota: p.shape.space.explain(&p.need), Nodes: refused,
	}
	groups := map[string]*Group{}
	for _, one := range refused {
		if len(one.Refusals) == 0 {
			continue // the quota alone speaks against it
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

// Suit is how a node stands to a workload that should be on every node that
// suits, whatever is free there.
type Suit struct {
	// Node is the uid.
	Node, NodeName string
	// Takes is whether it should have a replica; Keeps whether one that it has may
	// stay: a node that is cordoned, pressed, offline or has got a taint NoSchedule
	// keeps what is there, and so does one whose driver is away for a while, or one
	// with a taint NoExecute that is borne for some time.
	Takes, Keeps bool
}

// Suits says it for every node, by name.
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

// of is the standing of a class for one of its nodes: there may be rules about what
// it is called.
func (s Suit) of(r *Revision, n *Node) Suit {
	s.Node, s.NodeName = n.UID, n.Name
	for k := range r.Needs.Rules {
		if rule := &r.Needs.Rules[k]; rule.singles() && !rule.holdsFor(n) {
			s.Takes, s.Keeps = false, false
		}
	}
	return s
}

// passing are the filters that may refuse a node for a while only: they keep
// replicas from coming and do not send any away.
var passing = map[string]bool{"ready": true, "driver": true, "platform": true, "gpu": true, "taints": true}

// stands asks the rules about a class. The placing has a revision alone.
func (p *placing) stands(c *class) (takes, keeps bool) {
	takes, keeps = true, true
	for _, f := range classFilters {
		if f.applies(p) && !f.passes(p, c) {
			takes = false
			keeps = keeps && passing[f.name]
		}
	}
	for _, t := range c.taints {
		seconds, forever := Bears(p.rev.Needs.Tolerations, t)
		keeps = keeps && (t.Effect != NoExecute || forever || seconds > 0)
	}
	return takes, keeps
}
