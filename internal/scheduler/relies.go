package scheduler

import "slices"

// Relies says whether rules about where others are decide on where a revision may
// go. If so, a plan for it is good for as long as no node changes. The workloads, by
// uid and in no order, are those of which moreover nothing may end: those that it must
// be near to, and itself where it is levelled.
func (v *View) Relies(r *Revision) (others bool, workloads []string) {
	if r.bound() {
		return true, v.reliesOn(r)
	}
	repelled := slices.ContainsFunc(v.work.avoiders, func(s *shape) bool { return s.Workload != r.Workload && s.keepsAway(r) })
	return r.repels() || repelled, nil
}

func (v *View) reliesOn(r *Revision) (workloads []string) {
	if r.levelled() {
		workloads = append(workloads, r.Workload)
	}
	for i := range r.Wishes.Affinity {
		a := &r.Wishes.Affinity[i]
		if a.Anti || !a.required() {
			continue
		}
		for uid, w := range v.work.workloads {
			if a.matches(r.Namespace, w.newest()) {
				workloads = append(workloads, uid)
			}
		}
	}
	return workloads
}

// keepsAway reports whether a rule of a revision keeps another one away.
func (r *Revision) keepsAway(other *Revision) bool {
	return slices.ContainsFunc(r.Wishes.Affinity, func(a Affinity) bool {
		return a.Anti && a.required() && a.matches(r.Namespace, other)
	})
}
