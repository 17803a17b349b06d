package state

import (
	"iter"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Namespace returns a namespace that somebody has made by its uid.
func (s *Snapshot) Namespace(uid string) *v1.Namespace {
	return byUID[*v1.Namespace](s, KindNamespace, uid)
}

// NamespaceByName returns a namespace that somebody has made by its name.
func (s *Snapshot) NamespaceByName(name string) *v1.Namespace {
	return byName[*v1.Namespace](s, KindNamespace, "", name)
}

// Namespaces lists the namespaces that somebody has made by name.
func (s *Snapshot) Namespaces(after string) iter.Seq[*v1.Namespace] {
	return listByName[*v1.Namespace](s, KindNamespace, "", after)
}

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
