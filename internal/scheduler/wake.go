package scheduler

import (
	"maps"
	"slices"
)

// waiting are the revisions that did not fit, by workload, and what has changed
// since: only what could help one of them wakes it.
type waiting struct {
	revisions map[string]*Revision
	on        map[string][]string // the nodes that alone can help, by workload; all if there are none
	nodes     map[int32]bool      // new, different or emptier
	spaces    map[*namespace]bool // with more of their quota left
	moved     bool                // some replica came or went
}

// Wait remembers that replicas of a revision are left over. What changes from
// now on is looked at by Wake.
func (v *View) Wait(r *Revision) {
	v.WaitOn(r, nil)
}

// WaitOn is Wait for replicas that are for certain nodes, of which one must change.
func (v *View) WaitOn(r *Revision, nodes []string) {
	if v.waits.revisions == nil {
		v.waits = waiting{revisions: map[string]*Revision{}, on: map[string][]string{}, nodes: map[int32]bool{}, spaces: map[*namespace]bool{}}
	}
	v.waits.revisions[r.Workload] = r
	delete(v.waits.on, r.Workload)
	if len(nodes) > 0 {
		v.waits.on[r.Workload] = nodes
	}
}

// Wake returns the uids of the workloads that wait and of which one more replica
// would fit after what has changed, in their order. They do not wait any more.
func (v *View) Wake() []string {
	w := &v.waits
	if !w.moved && len(w.nodes) == 0 && len(w.spaces) == 0 {
		return nil
	}
	var woken []string
	for _, uid := range slices.Sorted(maps.Keys(w.revisions)) {
		if v.helped(w.revisions[uid]) {
			woken = append(woken, uid)
			delete(w.revisions, uid)
			delete(w.on, uid)
		}
	}
	clear(w.nodes)
	clear(w.spaces)
	w.moved = false
	return woken
}

// helped reports whether a revision has a place now. A change of one node can
// help on that node alone, unless there are rules about where others are.
func (v *View) helped(r *Revision) bool {
	v.refresh()
	s := v.enter(r)
	defer v.leave(s)
	p := &v.place
	p.begin(v, s)
	if s.space.room(&p.need) == 0 {
		return false
	}
	anywhere := v.waits.spaces[s.space] || v.waits.moved && !(p.free && p.plain)
	if on := v.waits.on[r.Workload]; len(on) > 0 {
		return slices.ContainsFunc(on, func(uid string) bool {
			i, known := v.slots[uid]
			return known && (anywhere || v.waits.nodes[i]) && p.wouldTake(i)
		})
	}
	if anywhere {
		return slices.ContainsFunc(v.order, p.wouldTake)
	}
	for i := range v.waits.nodes {
		if v.class[i] != 0 && p.wouldTake(i) {
			return true
		}
	}
	return false
}

// wouldTake reports whether a node has room for a replica, or could make it.
func (p *placing) wouldTake(i int32) bool {
	of := &p.verdicts[p.v.class[i]]
	if !of.passes || !p.open(of.group) {
		return false
	}
	if p.passesNode(i) {
		return true
	}
	if !p.mayPreempt() {
		return false
	}
	_, possible := p.offer(i, &victims{})
	return possible
}

// noteNode, noteRoom and noteQuota say what has changed, if somebody waits.
func (w *waiting) noteNode(i int32) {
	if len(w.revisions) > 0 {
		w.nodes[i] = true
	}
}

func (w *waiting) noteRoom(i int32, s *namespace) {
	if len(w.revisions) == 0 {
		return
	}
	w.nodes[i], w.moved = true, true
	if s.quota != (Quota{}) {
		w.spaces[s] = true
	}
}

func (w *waiting) noteQuota(s *namespace) {
	if len(w.revisions) > 0 {
		w.spaces[s] = true
	}
}
