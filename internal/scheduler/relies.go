package scheduler

// Reliance is what a plan for a revision relies on beside the nodes that it uses.
type Reliance struct {
	// Others is whether rules about where others are decide on where it may go: then
	// the plan is good for as long as no node changes, wherever it is.
	Others bool
	// Workloads are the uids, in no order, of those of which moreover nothing may end:
	// those that it must be near to, and itself where it is levelled.
	Workloads []string
	// Labels is whether it might not go there if it had other labels.
	Labels bool
}

// Relies says what a plan for a revision relies on.
func (v *View) Relies(r *Revision) Reliance {
	on := Reliance{Others: r.bound()}
	_, on.Labels = r.About(r)
	for i := range r.Wishes.Affinity {
		a := &r.Wishes.Affinity[i]
		switch {
		case !a.required():
		case a.Anti:
			on.Others = on.Others || !a.checkedByNode()
		default:
			on.Workloads = v.matched(on.Workloads, a, r.Namespace)
		}
	}
	if r.levelled() {
		on.Workloads = append(on.Workloads, r.Workload)
	}
	for _, s := range v.work.avoiders {
		if s.Workload != r.Workload {
			does, might := s.About(r)
			on.Others, on.Labels = on.Others || does, on.Labels || might
		}
	}
	return on
}

// matched adds the workloads that a rule is about.
func (v *View) matched(workloads []string, a *Affinity, namespace string) []string {
	for uid, w := range v.work.workloads {
		if a.matches(namespace, w.newest()) {
			workloads = append(workloads, uid)
		}
	}
	return workloads
}

// About reports whether a rule that must hold is about another revision, and whether
// one might be if that had other labels. It may be the same.
func (r *Revision) About(other *Revision) (is, might bool) {
	for i := range r.Wishes.Affinity {
		if a := &r.Wishes.Affinity[i]; a.required() && !a.checkedByNode() && r.Namespace == other.Namespace {
			is, might = is || a.matches(r.Namespace, other), might || a.Workload == ""
		}
	}
	return is, might
}

// checkedByNode reports whether nothing but what is on one node can break a rule to
// stay away: nobody else puts anything there, and names do not change.
func (a *Affinity) checkedByNode() bool { return a.Anti && a.Key == KeyNode && a.Workload != "" }
