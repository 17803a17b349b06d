package scheduler

import (
	"maps"
	"slices"
)

// waiting are the revisions that did not fit, by workload, and what has changed since: only
// changes that could help one of them wake it.
type waiting struct {
	revisions map[string]*Revision
	// on are the only nodes that can help, by workload; all if there are none.
	on map[string][]string
	// patient are those of them for which room is being made: only a free place helps them.
	patient map[string]bool
	// holders are workloads for which room is being made on a node that changed.
	holders map[string]bool
	nodes   map[int32]bool      // new, changed or emptier
	spaces  map[*namespace]bool // with more of their quota left
	// moved is whether a replica came or went, or a node went or changed in a way that
	// rules see. With affinity rules that may help on other nodes, too.
	moved bool
	// repellerGone is whether a replica is gone, or may have moved, that kept others away or
	// protected others from preemption. That may help workloads without any rules, on any
	// node.
	repellerGone bool
}

// Wait remembers that replicas of a revision are unplaced. Wake considers what changes from
// now on.
func (v *View) Wait(r *Revision) {
	v.WaitOn(r, nil)
}

// WaitOn is Wait for replicas that only a change of certain nodes can help.
func (v *View) WaitOn(r *Revision, nodes []string) {
	v.waits.add(r)
	delete(v.waits.patient, r.Workload)
	if len(nodes) > 0 {
		v.waits.on[r.Workload] = nodes
	}
}

// WaitPatiently remembers that room is being made for replicas of a revision: they wake
// when it is free, or when there is a free place elsewhere.
func (v *View) WaitPatiently(r *Revision) {
	if v.waits.revisions[r.Workload] == nil || v.waits.patient[r.Workload] {
		v.waits.add(r)
		v.waits.patient[r.Workload] = true
	}
}

func (w *waiting) add(r *Revision) {
	if w.revisions == nil {
		w.revisions, w.on, w.patient = map[string]*Revision{}, map[string][]string{}, map[string]bool{}
		w.nodes, w.spaces = map[int32]bool{}, map[*namespace]bool{}
	}
	w.revisions[r.Workload] = r
	delete(w.on, r.Workload)
}

// forget drops a workload that no longer waits.
func (w *waiting) forget(uid string) {
	delete(w.revisions, uid)
	delete(w.on, uid)
	delete(w.patient, uid)
}

// Wake returns the uids of waiting workloads, in order, if one more of their replicas would fit after the changes. They
// no longer wait.
func (v *View) Wake() []string {
	w := &v.waits
	if !w.moved && len(w.nodes) == 0 && len(w.spaces) == 0 && len(w.holders) == 0 {
		return nil
	}
	woken := slices.Sorted(maps.Keys(w.holders))
	for uid := range w.holders {
		w.forget(uid)
	}
	clear(w.holders)
	for _, uid := range slices.Sorted(maps.Keys(w.revisions)) {
		if v.helped(w.revisions[uid], w.patient[uid]) {
			woken = append(woken, uid)
			w.forget(uid)
		}
	}
	slices.Sort(woken)
	clear(w.nodes)
	clear(w.spaces)
	w.moved, w.repellerGone = false, false
	return woken
}

// helped reports whether a revision has a place now, a free one if it is patient. A new
// node, or more room on a node, can help only on that node; see moved and repellerGone for the rest.
func (v *View) helped(r *Revision, patient bool) bool {
	v.refresh()
	s := v.enter(r)
	defer v.leave(s)
	p := &v.place
	p.begin(v, s)
	if s.space.room(&p.need) == 0 {
		return false
	}
	anywhere := v.waits.repellerGone || v.waits.spaces[s.space] || v.waits.moved && !(p.free && p.plain)
	if on := v.waits.on[r.Workload]; len(on) > 0 {
		return slices.ContainsFunc(on, func(uid string) bool {
			i, known := v.slots[uid]
			return known && (anywhere || v.waits.nodes[i]) && p.wouldTake(i, patient)
		})
	}
	if anywhere {
		return slices.ContainsFunc(v.order, func(i int32) bool { return p.wouldTake(i, patient) })
	}
	for i := range v.waits.nodes {
		if v.class[i] != 0 && p.wouldTake(i, patient) {
			return true
		}
	}
	return false
}

// wouldTake reports whether a node has room for a replica, or could make it by preemption
// for one that is not patient.
func (p *placing) wouldTake(i int32, patient bool) bool {
	of := &p.verdicts[p.v.class[i]]
	if !of.passes || !p.open(of.group) {
		return false
	}
	if p.passesNode(i) {
		return true
	}
	if patient || !p.mayPreempt() {
		return false
	}
	_, possible := p.estimate(i, &victims{})
	return possible
}

// noteNode, noteMove, noteRoom and noteQuota record what has changed, if something waits.
func (w *waiting) noteNode(i int32) {
	if len(w.revisions) > 0 {
		w.nodes[i] = true
	}
}

// noteMove is for a node that goes or changes in a way that rules see. repelling is whether
// a replica there keeps others away.
func (w *waiting) noteMove(repelling bool) {
	if len(w.revisions) > 0 {
		w.moved, w.repellerGone = true, w.repellerGone || repelling
	}
}

func (w *waiting) noteRoom(i int32, s *shape) {
	if len(w.revisions) == 0 {
		return
	}
	w.nodes[i], w.moved, w.repellerGone = true, true, w.repellerGone || s.repels() || s.follows()
	if s.space.quota != (Quota{}) {
		w.spaces[s.space] = true
	}
}

func (w *waiting) noteQuota(s *namespace) {
	if len(w.revisions) > 0 {
		w.spaces[s] = true
	}
}
