package scheduler

// Standing is what a replica on a node means to those who need its room.
type Standing uint8

// The standings.
const (
	// Serving runs.
	Serving Standing = iota
	// Starting has its place and does not run yet, or not at the moment.
	Starting
	// Leaving was told to end. Its room is not free before it has, but who can wait
	// may count on it.
	Leaving
	// Replaced was told to end, too, but its room is for a successor of its own.
	Replaced
	// Reserved is not there: room is being made for it, which nobody of the same or
	// a lower priority may take.
	Reserved
	// Inherited is not there either: it has the room of one that has ended for it.
	Inherited
)

// attend counts a replica by its standing, or counts it out.
func (v *View) attend(at int32, sign int) {
	r := v.work.at(at)
	n, w := &v.nodes[r.node], r.shape.work
	switch r.standing {
	case Serving:
		w.there += sign
		w.serving += sign
	case Starting, Inherited, Replaced: // whose successor is as good as there
		w.there += sign
	case Leaving:
		if n.going += sign; sign > 0 {
			n.leaving = n.leaving.plus(r.shape.Needs.Resources)
		} else {
			n.leaving = n.leaving.minus(r.shape.Needs.Resources)
		}
	case Reserved:
		n.reserved += sign
	}
}

// restand changes the standing of a replica. It may help those who wait to push
// others out: here, where somebody leaves, or wherever the workload is of which
// more run than before.
func (v *View) restand(at int32, as Standing) {
	r := v.work.at(at)
	if r.standing == as {
		return
	}
	was := r.standing
	v.attend(at, -1)
	r.standing = as
	v.attend(at, 1)
	v.noteHold(at)
	switch {
	case as == Leaving:
		v.waits.noteNode(r.node)
	case was == Leaving:
		v.waits.noteMove(false) // it can be relied on again to be there
		fallthrough
	default:
		v.noteMore(r.shape)
	}
}

// noteHold says that room is made for a replica: those whose room it is to have may be gone
// already.
func (v *View) noteHold(at int32) {
	if r := v.work.at(at); r.standing == Reserved {
		v.noteHolds(r.node)
	}
}

// noteMore says that a workload has more than before: one more may go then, wherever it is.
func (v *View) noteMore(s *shape) {
	if len(v.waits.revisions) == 0 || s.MinAvailable == 0 {
		return
	}
	for _, on := range s.work.on {
		v.waits.noteNode(on.node)
	}
}

// Leave takes a replica for one that was told to end.
func (v *View) Leave(uid string) {
	if at, known := v.work.byUID[uid]; known {
		v.restand(at, Leaving)
	}
}

// GiveWay takes a replica for one that was told to end for a successor of its own.
func (v *View) GiveWay(uid string) {
	if at, known := v.work.byUID[uid]; known {
		v.restand(at, Replaced)
	}
}

// doom takes a replica for leaving until the plan is taken back.
func (v *View) doom(at int32) {
	r := v.work.at(at)
	v.journal = append(v.journal, deed{node: r.node, shape: r.shape, evicted: at, doomed: true, was: r.standing})
	v.attend(at, -1)
	r.standing = Leaving
	v.attend(at, 1)
}

// noteHolds wakes those for whom room is being made on a node.
func (v *View) noteHolds(i int32) {
	if v.nodes[i].reserved == 0 {
		return
	}
	if v.waits.holders == nil {
		v.waits.holders = map[string]bool{}
	}
	for _, at := range v.nodes[i].replicas {
		if r := v.work.at(at); r.standing == Reserved {
			v.waits.holders[r.shape.Workload] = true
		}
	}
}

// hold looks at one replica of an ask for which room is being made. If that has
// come about, or there is a free place anywhere else, it goes there; else it goes
// on waiting. One that has inherited its room goes to the best place, which need not be
// there. One that is pinned goes nowhere else. It reports whether it has lost its
// hold, because its node will not do any more or one of a higher priority has
// taken it.
func (v *View) hold(plan *Plan, index int, s *shape, uid string, pinned bool) (lost bool) {
	at, known := v.work.byUID[uid]
	if !known {
		return true
	}
	i := v.work.at(at).node
	standing := v.work.at(at).standing
	if _, there := v.seat(v.nodes[i].replicas, at); !there || standing != Reserved && standing != Inherited {
		return true
	}
	v.evict(at)
	p := &v.place
	p.begin(v, s)
	if s.space.room(&p.need) == 0 {
		return true
	}
	placed := func(i int32, score Score) {
		plan.Placements = append(plan.Placements, Placement{Ask: index, Node: v.nodes[i].UID, NodeName: v.nodes[i].Name, Score: score, Held: uid})
	}
	if standing == Inherited && !pinned {
		return p.run(1, placed) == 0
	}
	o, good := p.offer(i, &victims{})
	good = good && o.count == 0
	if good && p.vacated(i) {
		placed(i, p.score(i))
		p.take(i, p.verdicts[v.class[i]].group)
		return false
	}
	if !pinned && p.run(1, placed) == 1 {
		return false
	}
	if !good || standing == Inherited {
		return true
	}
	p.take(i, p.verdicts[v.class[i]].group)
	plan.Held = append(plan.Held, Held{Ask: index, Replica: uid, Node: v.nodes[i].UID, NodeName: v.nodes[i].Name})
	return false
}

// vacated reports whether what a hold waits for has ended. Room that is held for
// others is not used yet; but who is more important goes first.
func (p *placing) vacated(i int32) bool {
	n := &p.v.nodes[i]
	free := p.v.free[i]
	for _, at := range n.replicas {
		if r := p.v.work.at(at); r.standing == Reserved && r.shape.Priority <= p.rev.Priority {
			free = free.plus(r.shape.Needs.Resources)
		}
	}
	return free.holds(&p.least) && p.passesSingly(i)
}
