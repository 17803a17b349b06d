package state

import "iter"

// NamespacesInUse lists the names of all namespaces that have objects of a named kind, in order, whether or not a
// Namespace object exists. It reads one object of each.
func (s *Snapshot) NamespacesInUse(kind Kind) iter.Seq[string] {
	return func(yield func(string) bool) {
		for start, found := "", true; found; {
			found = false
			s.rows[ordinals[kind]].byName.ascend(start, func(_ string, o Object) bool {
				name := o.GetMetadata().GetNamespace()
				start = name + "\x01" // after all keys of the namespace
				found = yield(name)
				return false
			})
		}
	}
}
