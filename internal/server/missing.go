package server

import (
	"context"
	"fmt"
	"iter"
	"slices"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/nearest"
	"github.com/cloudless/cloudless/internal/state"
)

// maxCandidates bounds how many names are looked at for what was meant.
const maxCandidates = 20_000

// missingWorkload says that a workload does not exist, and what may have been
// meant: another name, or another namespace.
func missingWorkload(snap *state.Snapshot, namespace, name string) error {
	missing := fmt.Sprintf("workload %s does not exist in namespace %s", name, namespace)
	if near := nearest.To(name, objectNames(snap.Workloads(namespace, ""))); near != "" {
		return refuse(codes.NotFound, "%s; did you mean %s?", missing, near)
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
	switch {
	case elsewhere != "":
		return refuse(codes.NotFound, "%s, but in namespace %s: add -n %s", missing, elsewhere, elsewhere)
	case slices.Contains(namespaces, namespace):
		return refuse(codes.NotFound, "%s; see: cloudless workload ls", missing)
	}
	if near := nearest.To(namespace, slices.Values(namespaces)); near != "" {
		return refuse(codes.NotFound, "%s, which is empty; did you mean namespace %s?", missing, near)
	}
	return refuse(codes.NotFound, "%s; see: cloudless workload ls --all-namespaces", missing)
}

func missingReplica(snap *state.Snapshot, w *v1.Workload, name string) error {
	near := nearest.To(name, objectNames(snap.ReplicasOf(w.GetMetadata().GetUid())))
	return refuse(codes.NotFound, "workload %s has no replica %s%s", w.GetMetadata().GetName(), name, meant(near, "cloudless ps"))
}

func missingNode(snap *state.Snapshot, name string) error {
	near := nearest.To(name, objectNames(snap.Nodes("")))
	return refuse(codes.NotFound, "node %s does not exist%s", name, meant(near, "cloudless node ls"))
}

func missingToken(snap *state.Snapshot, name string) error {
	near := nearest.To(name, objectNames(snap.Tokens("")))
	return refuse(codes.NotFound, "token %s does not exist%s", name, meant(near, "cloudless token ls"))
}

func (s *Server) missingImage(ctx context.Context, name string) error {
	return refuse(codes.NotFound, "image %s does not exist%s", name, meant(s.nearestImage(ctx, name), "cloudless image ls"))
}

// nearestImage is the name in the cluster's own registry that may have been
// meant, if any.
func (s *Server) nearestImage(ctx context.Context, name string) string {
	repositories, err := s.registry.List(ctx)
	if err != nil {
		return "" // there is a better error to show
	}
	return nearest.To(name, bounded(func(yield func(string) bool) {
		for _, repository := range repositories {
			if slices.Contains(repository.Tags, image.DefaultTag) && !yield(repository.Name) {
				return
			}
			for _, tag := range repository.Tags {
				if !yield(repository.Name + ":" + tag) {
					return
				}
			}
		}
	}))
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
