// Package notfound has the errors for names that do not exist. They suggest the
// name that the caller probably meant. It only reads the state.
package notfound

import (
	"fmt"
	"iter"
	"slices"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// maxCandidates bounds how many names are compared to find a suggestion.
const maxCandidates = 20_000

// Workload is the error for a workload that does not exist. It suggests the workload
// of a replica, a similar name, or another namespace.
func Workload(snap *state.Snapshot, namespace, name string) error {
	missing := fmt.Sprintf("workload %s does not exist in namespace %s", name, namespace)
	if r := snap.ReplicaByName(namespace, name); r != nil {
		return core.Refuse(codes.NotFound, "%s: it is a replica of workload %s; name that one", missing, r.GetSpec().GetWorkload())
	}
	if near := suggest.To(name, Names(snap.Workloads(namespace, ""))); near != "" {
		return core.Refuse(codes.NotFound, "%s; did you mean %s?", missing, near)
	}
	here := core.Refuse(codes.NotFound, "%s; see: %s", missing, spec.Hint(namespace, "cloudless workload ls"))
	var elsewhere string
	var namespaces []string
	for w := range bounded(snap.Workloads("", "")) {
		m := w.GetMetadata()
		if m.GetName() == name && elsewhere == "" {
			elsewhere = m.GetNamespace()
		}
		if len(namespaces) == 0 || namespaces[len(namespaces)-1] != m.GetNamespace() {
			namespaces = append(namespaces, m.GetNamespace())
		}
	}
	withReplica := slices.IndexFunc(namespaces, func(n string) bool { return snap.ReplicaByName(n, name) != nil })
	switch {
	case withReplica >= 0:
		in := namespaces[withReplica]
		return core.Elsewhere("workload", here, "%s, but replica %s does in namespace %s: add -n %s", missing, name, in, in)
	case elsewhere != "":
		return core.Elsewhere("workload", here, "%s, but in namespace %s: add -n %s", missing, elsewhere, elsewhere)
	case slices.Contains(namespaces, namespace):
		return here
	}
	if near := suggest.To(namespace, slices.Values(namespaces)); near != "" {
		return core.Elsewhere("workload", here, "%s, which is empty; did you mean namespace %s?", missing, near)
	}
	return core.Elsewhere("workload", here, "%s; see: cloudless workload ls --all-namespaces", missing)
}

// Replica is the error for a replica that workload w does not have.
func Replica(snap *state.Snapshot, w *v1.Workload, name string) error {
	near := suggest.To(name, Names(snap.ReplicasOf(w.GetMetadata().GetUid())))
	return core.Refuse(codes.NotFound, "workload %s has no replica %s%s", w.GetMetadata().GetName(), name, Hint(near, spec.Hint(w.GetMetadata().GetNamespace(), "cloudless ps")))
}

// Image is the error for an image that is not in the cluster's own registry.
func Image(snap *state.Snapshot, name string) error {
	missing := core.Refuse(codes.NotFound, "image %s does not exist; see: cloudless image ls", name)
	return core.Elsewhere("image", missing, "image %s does not exist%s", name, Hint(images.Nearest(snap, name), "cloudless image ls"))
}

// Hint is the end of such an error: it suggests a similar name or, without one, the
// command that lists all names.
func Hint(near, see string) string {
	if near != "" {
		return "; did you mean " + near + "?"
	}
	return "; see: " + see
}

// Names yields the names of objects, up to a bound.
func Names[T state.Object](objects iter.Seq[T]) iter.Seq[string] {
	return func(yield func(string) bool) {
		for o := range bounded(objects) {
			if !yield(o.GetMetadata().GetName()) {
				return
			}
		}
	}
}

func bounded[T any](all iter.Seq[T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		n := 0
		for item := range all {
			if n++; n > maxCandidates || !yield(item) {
				return
			}
		}
	}
}
