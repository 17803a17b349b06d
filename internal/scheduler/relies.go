package scheduler

// Reliance is what a plan for a revision relies on beside the nodes that it uses.
type Reliance struct {
	// Others is whether affinity rules decide where it may go: then the plan is valid only
	// as long as no node changes, anywhere.
	Others bool
	// Workloads are the uids, in no order, of workloads whose replicas must not end either:
	// those that it must be near, and itself if it is levelled.
	Workloads []string
	// Labels is whether it might not go there if it had other labels.
	Labels bool
}

// Relies says what a plan for a revision relies on.
func (v *View) Relies(r *Revision) Reliance {
	on := Reliance{Others: r.bound()}
	_, on.Labels = r.About(r)
	for i := range r.Preferences.Affinity {
		a := &r.Preferences.Affinity[i]
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

// matched adds the workloads that a rule matches.
func (v *View) matched(workloads []string, a *Affinity, namespace string) []string {
	for uid, w := range v.work.workloads {
		if a.matches(namespace, w.newest()) {
			workloads = append(workloads, uid)
		}
	}
	return workloads
}

// About reports whether a required rule matches another revision, and whether one might if
// that had other labels. The two may be the same revision.
func (r *Revision) About(other *Revision) (is, might bool) {
	for i := range r.Preferences.Affinity {
		if a := &r.Preferences.Affinity[i]; a.required() && !a.checkedByNode() && r.Namespace == other.Namespace {
			is, might = is || a.matches(r.Namespace, other), might || a.Workload == ""
		}
	}
	return is, might
}

// checkedByNode reports whether only changes on one node can break an anti-affinity rule:
// only the loop places replicas there, and names do not change.
func (a *Affinity) checkedByNode() bool { return a.Anti && a.Key == KeyNode && a.Workload != "" }
