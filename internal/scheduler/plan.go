package scheduler

import (
	"cmp"
	"slices"
)

// Ask is a number of replicas of one revision.
type Ask struct {
	Revision *Revision
	Count    int
	// Held are uids of further replicas for which room is being made. They are Reserved in
	// the view.
	Held []string
	// Pinned is whether each replica is for one node. Then On has the nodes of the waiting
	// replicas, and Count is ignored; unplaced replicas get the reason of each of these
	// nodes. Held replicas are for the node on which room is being made.
	Pinned bool
	On     []string
	// Modest is whether the replicas only take free room and preempt no others.
	Modest bool
}

// Request is what should be placed. Asks of a higher priority come first, others in their
// order.
type Request struct {
	Asks []Ask
	// Reasons asks for the reason of every node about unplaced replicas; without it there
	// are groups with an example.
	Reasons bool
	// Without are uids of replicas to ignore.
	Without []string
}

// Plan says where each replica goes, or why nowhere.
type Plan struct {
	// Placements has one entry for each placed replica.
	Placements []Placement
	// Preemptions are the replicas that must leave before some of the placements.
	Preemptions []Preemption
	// Held are the replicas that still wait for their reserved room.
	Held []Held
	// Unplaced has one entry for each ask with replicas left over.
	Unplaced []Unplaced
}

// Placement is one replica's place. Ask is the index of its ask, Node the uid.
type Placement struct {
	Ask      int
	Node     string
	NodeName string
	Score    Score
	// Preempts is whether replicas have to leave first: those of the preemptions that name
	// this placement, and those that leave the node anyway.
	Preempts bool
	// Held is the uid of the held replica that it is for, if any.
	Held string
}

// Held is a replica that waits for its reserved room. Ask is the index of its ask, Node the
// uid.
type Held struct {
	Ask      int
	Replica  string
	Node     string
	NodeName string
}

// Plan places what is asked for; later replicas see the earlier ones. It leaves the view
// unchanged.
func (v *View) Plan(r Request) Plan {
	v.refresh()
	plan := Plan{Placements: make([]Placement, 0, demand(r.Asks))}
	shapes := make([]*shape, len(r.Asks))
	for i, ask := range r.Asks {
		shapes[i] = v.enter(ask.Revision)
	}
	for _, uid := range r.Without {
		if at, known := v.work.byUID[uid]; known {
			v.evict(at)
		}
	}
	for _, i := range byPriority(r.Asks) {
		if r.Asks[i].Pinned {
			v.serveEach(&plan, &r, i, shapes[i])
			continue
		}
		v.serve(&plan, &r, i, shapes[i])
	}
	v.rollback()
	for _, s := range shapes {
		v.leave(s)
	}
	return plan
}

// serve places one ask: on free room, then by preemption.
func (v *View) serve(plan *Plan, r *Request, index int, s *shape) {
	left := max(0, r.Asks[index].Count)
	for _, uid := range r.Asks[index].Held {
		if v.hold(plan, index, s, uid, false) {
			left++
		}
	}
	if left == 0 {
		return
	}
	p := &v.place
	p.begin(v, s)
	for {
		may := min(left, s.space.room(&p.need))
		placed := p.run(may, func(i int32, score Score) {
			plan.Placements = append(plan.Placements, Placement{Ask: index, Node: v.nodes[i].UID, NodeName: v.nodes[i].Name, Score: score})
		})
		preempted := 0
		if placed < may && !r.Asks[index].Modest && p.mayPreempt() {
			preempted = p.preempt(plan, index, may-placed)
		}
		final := preempted == 0 && may == left
		if left -= placed + preempted; left == 0 {
			return
		}
		if final || placed+preempted == 0 {
			break
		}
	}
	plan.Unplaced = append(plan.Unplaced, p.unplaced(index, left, r.Reasons))
}

// byPriority is the order in which asks are served.
func byPriority(asks []Ask) []int {
	order := make([]int, len(asks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(asks[b].Revision.Priority, asks[a].Revision.Priority)
	})
	return order
}

// demand bounds how many placements there can be.
func demand(asks []Ask) (n int) {
	for _, ask := range asks {
		n += clamp(max(ask.Count, len(ask.On))+len(ask.Held), 0, 1<<20)
	}
	return min(n, 1<<20)
}
