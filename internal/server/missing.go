package server

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

// maxCandidates bounds how many names are looked at for what was meant.
const maxCandidates = 20_000

// missingWorkload says that a workload does not exist, and what may have been
// meant: the workload of a replica, another name, or another namespace.
func missingWorkload(snap *state.Snapshot, namespace, name string) error {
	missing := fmt.Sprintf("workload %s does not exist in namespace %s", name, namespace)
	if r := snap.ReplicaByName(namespace, name); r != nil {
		return core.Refuse(codes.NotFound, "%s: it is a replica of workload %s; name that one", missing, r.GetSpec().GetWorkload())
	}
	if near := suggest.To(name, objectNames(snap.Workloads(namespace, ""))); near != "" {
		return core.Refuse(codes.NotFound, "%s; did you mean %s?", missing, near)
	}
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
		return core.Refuse(codes.NotFound, "%s, but replica %s does in namespace %s: add -n %s", missing, name, in, in)
	case elsewhere != "":
		return core.Refuse(codes.NotFound, "%s, but in namespace %s: add -n %s", missing, elsewhere, elsewhere)
	case slices.Contains(namespaces, namespace):
		return core.Refuse(codes.NotFound, "%s; see: %s", missing, spec.Hint(namespace, "cloudless workload ls"))
	}
	if near := suggest.To(namespace, slices.Values(namespaces)); near != "" {
		return core.Refuse(codes.NotFound, "%s, which is empty; did you mean namespace %s?", missing, near)
	}
	return core.Refuse(codes.NotFound, "%s; see: cloudless workload ls --all-namespaces", missing)
}

func missingReplica(snap *state.Snapshot, w *v1.Workload, name string) error {
	near := suggest.To(name, objectNames(snap.ReplicasOf(w.GetMetadata().GetUid())))
	return core.Refuse(codes.NotFound, "workload %s has no replica %s%s", w.GetMetadata().GetName(), name, meant(near, spec.Hint(w.GetMetadata().GetNamespace(), "cloudless ps")))
}

func missingNode(snap *state.Snapshot, name string) error {
	near := suggest.To(name, objectNames(snap.Nodes("")))
	return core.Refuse(codes.NotFound, "node %s does not exist%s", name, meant(near, "cloudless node ls"))
}

func missingImage(snap *state.Snapshot, name string) error {
	return core.Refuse(codes.NotFound, "image %s does not exist%s", name, meant(images.Nearest(snap, name), "cloudless image ls"))
}

// meant is the end of the sentence: the name that may have been meant, or where
// all of them can be seen.
func meant(near, see string) string {
	if near != "" {
		return "; did you mean " + near + "?"
	}
	return "; see: " + see
}

func objectNames[T state.Object](objects iter.Seq[T]) iter.Seq[string] {
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
