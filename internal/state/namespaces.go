package state

import "iter"

// NamespacesInUse lists the names of those that have workloads, made or not, in
// their order. It looks at one workload of each.
func (s *Snapshot) NamespacesInUse() iter.Seq[string] {
	return func(yield func(string) bool) {
		for start, found := "", true; found; {
			found = false
			s.rows[ordinals[KindWorkload]].byName.from(start, func(_ string, o Object) bool {
				name := o.GetMetadata().GetNamespace()
				start = name + "\x01" // behind all keys of the namespace
				found = yield(name)
				return false
			})
		}
	}
}
