package scheduler

// Standing is whether others may count on the room of a replica on a node.
type Standing uint8

// The standings.
const (
	// Serving runs.
	Serving Standing = iota
	// Starting has its place and does not run yet, or not at the moment.
	Starting
	// Leaving is stopping. Its room is free only after it has ended, but a waiting replica
	// may count on it.
	Leaving
	// Replaced is stopping, too, but its room is for its own successor.
	Replaced
	// Reserved is not there yet: room is being made for it, which no replica of the same or
	// a lower priority may take.
	Reserved
	// Inherited is not there yet either: it has the room of its ended predecessor.
	Inherited
)

// countStanding adds a replica to the counts of its standing, or removes it.
func (v *View) countStanding(at int32, sign int) {
	r := v.work.at(at)
	n, w := &v.nodes[r.node], r.shape.work
	switch r.standing {
	case Serving:
		w.there += sign
		w.serving += sign
	case Starting, Inherited, Replaced: // its successor is as good as there
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

// setStanding changes the standing of a replica. That may help waiting replicas to preempt: on
// this node, if a replica leaves, or wherever the workload runs, if more of it serve than
// before.
func (v *View) setStanding(at int32, as Standing) {
	r := v.work.at(at)
	if r.standing == as {
		return
	}
	was := r.standing
	v.countStanding(at, -1)
	r.standing = as
	v.countStanding(at, 1)
	v.noteHold(at)
	switch {
	case as == Leaving:
		v.waits.noteNode(r.node)
	case was == Leaving:
		v.waits.noteMove(false) // others can rely on its presence again
		fallthrough
	default:
		v.noteMore(r.shape)
	}
}

// noteHold notes that room is being made for a replica: the victims may be gone already.
func (v *View) noteHold(at int32) {
	if r := v.work.at(at); r.standing == Reserved {
		v.noteHolds(r.node)
	}
}

// noteMore notes that a workload has more replicas than before: then one more may leave,
// wherever it is.
func (v *View) noteMore(s *shape) {
	if len(v.waits.revisions) == 0 || s.MinAvailable == 0 {
		return
	}
	for _, on := range s.work.on {
		v.waits.noteNode(on.node)
	}
}

// Leave marks a replica as stopping.
func (v *View) Leave(uid string) {
	if at, known := v.work.byUID[uid]; known {
		v.setStanding(at, Leaving)
	}
}

// GiveWay marks a replica as stopping for its own successor.
func (v *View) GiveWay(uid string) {
	if at, known := v.work.byUID[uid]; known {
		v.setStanding(at, Replaced)
	}
}

// markLeaving marks a replica as leaving until the plan is undone.
func (v *View) markLeaving(at int32) {
	r := v.work.at(at)
	v.journal = append(v.journal, journalEntry{node: r.node, shape: r.shape, evicted: at, leaving: true, was: r.standing})
	v.countStanding(at, -1)
	r.standing = Leaving
	v.countStanding(at, 1)
}

// noteHolds wakes the replicas for which room is being made on a node.
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

// hold examines one replica for which room is being made. If the room is free, or there is
// a free place elsewhere, it is placed; else it keeps waiting. One with inherited room goes
// to the best place, which need not be that room. A pinned one goes nowhere else. hold
// reports whether the reservation is lost, because the node no longer suits or a replica of
// a higher priority has taken it.
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

// vacated reports whether the victims that a hold waits for have ended. Room reserved for
// others is not used yet, but a more important replica goes first.
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
