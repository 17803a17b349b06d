package server

import (
	"context"
	"fmt"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// workloads is the WorkloadService.
type workloads struct {
	v1.UnsafeWorkloadServiceServer
	*Server
}

func (s *workloads) CreateWorkload(ctx context.Context, request *v1.CreateWorkloadRequest) (*v1.Workload, error) {
	receipt, err := newReceipt(ctx, v1.WorkloadService_CreateWorkload_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	wanted := s.accept(request.GetWorkload())
	named, err := s.nameImage(ctx, wanted.GetSpec().GetImage(), receipt)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Workload, error) {
		if done, err := receipt.find(snap); done != nil || err != nil {
			return repeated(snap, done.GetObjectUid()), err
		}
		image, err := s.pinIn(ctx, snap, named)
		if err != nil {
			return nil, err
		}
		m := wanted.GetMetadata()
		if snap.WorkloadByName(m.GetNamespace(), m.GetName()) != nil {
			return nil, exists(snap, m)
		}
		if err := creatable(snap, wanted, 0); err != nil {
			return nil, err
		}
		image.relyOn(b)
		w := s.create(ctx, b, wanted, image)
		receipt.keep(b, w.GetMetadata().GetUid(), "")
		return w, nil
	})
}

func (s *workloads) ApplyWorkload(ctx context.Context, request *v1.ApplyWorkloadRequest) (*v1.ApplyWorkloadResponse, error) {
	receipt, err := newReceipt(ctx, v1.WorkloadService_ApplyWorkload_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	wanted := s.accept(request.GetWorkload())
	named, err := s.nameImage(ctx, wanted.GetSpec().GetImage(), receipt)
	if err != nil {
		return nil, err
	}
	var result string
	w, err := s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Workload, error) {
		if done, err := receipt.find(snap); done != nil || err != nil {
			result = done.GetMetadata().GetAnnotations()[resultOf]
			return repeated(snap, done.GetObjectUid()), err
		}
		image, err := s.pinIn(ctx, snap, named)
		if err != nil {
			return nil, err
		}
		m := wanted.GetMetadata()
		old := snap.WorkloadByName(m.GetNamespace(), m.GetName())
		if old == nil {
			if m.GetVersion() != 0 {
				return nil, vanished(m)
			}
			if err := creatable(snap, wanted, 0); err != nil {
				return nil, err
			}
			result = "created"
			image.relyOn(b)
			w := s.create(ctx, b, wanted, image)
			receipt.keep(b, w.GetMetadata().GetUid(), result)
			return w, nil
		}
		if err := changeable(old, m.GetVersion()); err != nil {
			return nil, err
		}
		if err := updatable(snap, old, wanted); err != nil {
			return nil, err
		}
		w, changed := s.update(ctx, snap, b, old, wanted, image)
		result = "unchanged"
		if changed {
			result = "updated"
			image.relyOn(b)
			receipt.keep(b, w.GetMetadata().GetUid(), result)
		}
		return w, nil
	})
	if err != nil {
		return nil, err
	}
	return &v1.ApplyWorkloadResponse{Workload: w, Result: result}, nil
}

func (s *workloads) UpdateWorkload(ctx context.Context, request *v1.UpdateWorkloadRequest) (*v1.Workload, error) {
	wanted := s.accept(request.GetWorkload())
	m := wanted.GetMetadata()
	if m.GetVersion() == 0 {
		return nil, &spec.Error{Violations: []spec.Violation{{
			Field: "metadata.version", Message: "is missing: an update names the version it was made from; read the workload first, or use apply",
		}}}
	}
	named, err := s.nameImage(ctx, wanted.GetSpec().GetImage(), receipt{})
	if err != nil {
		return nil, err
	}
	return s.changeNamed(ctx, m.GetNamespace(), m.GetName(), m.GetVersion(),
		func(snap *state.Snapshot, b *state.Batch, old *v1.Workload) (*v1.Workload, error) {
			if err := updatable(snap, old, wanted); err != nil {
				return nil, err
			}
			image, err := s.pinIn(ctx, snap, named)
			if err != nil {
				return nil, err
			}
			w, changed := s.update(ctx, snap, b, old, wanted, image)
			if changed {
				image.relyOn(b)
			}
			return w, nil
		})
}

func (s *workloads) ScaleWorkload(ctx context.Context, request *v1.ScaleWorkloadRequest) (*v1.Workload, error) {
	return s.changeNamed(ctx, request.GetNamespace(), request.GetName(), request.GetVersion(),
		func(snap *state.Snapshot, b *state.Batch, old *v1.Workload) (*v1.Workload, error) {
			if err := scalable(old); err != nil {
				return nil, err
			}
			if err := replicasAllowed(snap, old, request.GetReplicas()); err != nil {
				return nil, err
			}
			if old.GetSpec().GetReplicas() == request.GetReplicas() {
				return old, nil
			}
			if err := keepable(old, request.GetReplicas()); err != nil {
				return nil, err
			}
			w := proto.CloneOf(old)
			w.Spec.Replicas = proto.Int32(request.GetReplicas())
			b.Update(w, old.GetMetadata().GetVersion())
			b.Create(s.event(ctx, w, "Scaled", fmt.Sprintf("from %d to %d replicas", old.GetSpec().GetReplicas(), request.GetReplicas())))
			return w, nil
		})
}

func (s *workloads) RestartWorkload(ctx context.Context, request *v1.RestartWorkloadRequest) (*v1.Workload, error) {
	return s.changeNamed(ctx, request.GetNamespace(), request.GetName(), 0,
		func(snap *state.Snapshot, b *state.Batch, old *v1.Workload) (*v1.Workload, error) {
			if err := restartable(old); err != nil {
				return nil, err
			}
			w := proto.CloneOf(old)
			current := snap.Revision(old.GetStatus().GetRevisionUid())
			revision := s.revise(b, w, pinnedBy(current))
			revision.Spec.Restart = current.GetSpec().GetRestart() + 1
			b.Update(w, old.GetMetadata().GetVersion())
			b.Create(s.event(ctx, w, "Restarted", fmt.Sprintf("every replica is replaced by one of revision %d", revision.GetSpec().GetNumber())))
			return w, nil
		})
}

func (s *workloads) DeleteWorkload(ctx context.Context, request *v1.DeleteWorkloadRequest) (*v1.Workload, error) {
	namespace := orDefault(request.GetNamespace())
	return s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Workload, error) {
		old := snap.WorkloadByName(namespace, request.GetName())
		if old == nil {
			return nil, missingWorkload(snap, namespace, request.GetName())
		}
		if err := sameVersion(old, request.GetVersion()); err != nil {
			return nil, err
		}
		if old.GetMetadata().GetDeleteTime() != nil {
			return old, nil
		}
		return s.remove(ctx, b, old), nil
	})
}

// remove begins the deletion of a workload.
func (s *Server) remove(ctx context.Context, b *state.Batch, old *v1.Workload) *v1.Workload {
	w := proto.CloneOf(old)
	w.Metadata.DeleteTime = timestamppb.New(s.now())
	b.Update(w, old.GetMetadata().GetVersion())
	b.Create(s.event(ctx, w, "Deleting", "its replicas are being stopped"))
	return w
}

// create adds a new workload and its first revision to the batch.
func (s *Server) create(ctx context.Context, b *state.Batch, wanted *v1.Workload, image pinned) *v1.Workload {
	w := &v1.Workload{
		ApiVersion: wanted.GetApiVersion(),
		Kind:       wanted.GetKind(),
		Metadata: &v1.Metadata{
			Uid:         state.NewUID(),
			Name:        wanted.GetMetadata().GetName(),
			Namespace:   wanted.GetMetadata().GetNamespace(),
			Labels:      wanted.GetMetadata().GetLabels(),
			Annotations: wanted.GetMetadata().GetAnnotations(),
		},
		Spec:   wanted.GetSpec(),
		Status: &v1.WorkloadStatus{Configuration: wanted.GetStatus().GetConfiguration()},
	}
	s.revise(b, w, image)
	b.Create(w)
	b.Create(s.event(ctx, w, "Created", fmt.Sprintf("%s of %s%s", sized(w.GetSpec()), w.GetSpec().GetImage(), pinNote(image.image))))
	return w
}

// update brings an existing workload to what is wanted, with a new revision
// only where what runs would differ.
func (s *Server) update(ctx context.Context, snap *state.Snapshot, b *state.Batch, old, wanted *v1.Workload, image pinned) (*v1.Workload, bool) {
	current := snap.Revision(old.GetStatus().GetRevisionUid())
	if unpinned(image.image) && spec.SameImage(old.GetSpec().GetImage(), wanted.GetSpec().GetImage()) {
		image = pinnedBy(current) // a registry that is away is no reason to run something else
	}
	sameTemplate := image.image == current.GetSpec().GetImage() && spec.ReplacesNone(old.GetSpec(), wanted.GetSpec())
	sameAll := sameTemplate && spec.Equal(old.GetSpec(), wanted.GetSpec()) &&
		maps.Equal(old.GetMetadata().GetLabels(), wanted.GetMetadata().GetLabels()) &&
		maps.Equal(old.GetMetadata().GetAnnotations(), wanted.GetMetadata().GetAnnotations())
	if sameAll {
		return old, false
	}
	w := proto.CloneOf(old)
	w.Spec = wanted.GetSpec()
	w.Metadata.Labels = wanted.GetMetadata().GetLabels()
	w.Metadata.Annotations = wanted.GetMetadata().GetAnnotations()
	if !sameTemplate {
		w.Status.Configuration = wanted.GetStatus().GetConfiguration()
		revision := s.revise(b, w, image)
		revision.Spec.Restart = current.GetSpec().GetRestart()
	}
	b.Update(w, old.GetMetadata().GetVersion())
	b.Create(s.event(ctx, w, "Updated", fmt.Sprintf("now at revision %d%s", w.GetStatus().GetRevision(), pinNote(image.image))))
	return w, true
}

// revise adds the next revision of w to the batch and points w at it.
func (s *Server) revise(b *state.Batch, w *v1.Workload, image pinned) *v1.Revision {
	w.Status.Revision++
	w.Status.RevisionUid = state.NewUID()
	revision := &v1.Revision{
		ApiVersion: w.GetApiVersion(),
		Kind:       "Revision",
		Metadata: &v1.Metadata{
			Uid:       w.GetStatus().GetRevisionUid(),
			Name:      revisionName(w),
			Namespace: w.GetMetadata().GetNamespace(),
		},
		Spec: &v1.RevisionSpec{
			WorkloadUid: w.GetMetadata().GetUid(),
			Number:      w.GetStatus().GetRevision(),
			Workload:    w.GetSpec(), // shared, since what is stored never changes
			Image:       image.image,
			Platforms:   image.platforms,
		},
	}
	b.Create(revision)
	return revision
}

// revisionName is unique even when a name is used again after a deletion.
func revisionName(w *v1.Workload) string {
	return fmt.Sprintf("%s-%d", w.GetMetadata().GetUid(), w.GetStatus().GetRevision())
}

// changeNamed changes one existing workload.
func (s *Server) changeNamed(ctx context.Context, namespace, name string, version uint64, f func(*state.Snapshot, *state.Batch, *v1.Workload) (*v1.Workload, error)) (*v1.Workload, error) {
	namespace = orDefault(namespace)
	return s.change(ctx, func(snap *state.Snapshot, b *state.Batch) (*v1.Workload, error) {
		old := snap.WorkloadByName(namespace, name)
		if old == nil {
			return nil, missingWorkload(snap, namespace, name)
		}
		if err := changeable(old, version); err != nil {
			return nil, err
		}
		return f(snap, b, old)
	})
}

// change runs f until what it proposed is accepted, and returns the workload
// as it is shown.
func (s *Server) change(ctx context.Context, f func(*state.Snapshot, *state.Batch) (*v1.Workload, error)) (*v1.Workload, error) {
	var w *v1.Workload
	snap, err := s.propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		var err error
		w, err = f(snap, b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if stored := snap.Workload(w.GetMetadata().GetUid()); stored != nil {
		w = stored
	}
	return s.present(snap, w, false), nil
}

func changeable(w *v1.Workload, version uint64) error {
	if w.GetMetadata().GetDeleteTime() != nil {
		return refuse(codes.FailedPrecondition, "workload %s is being deleted; wait until it is gone, then create it again", w.GetMetadata().GetName())
	}
	return sameVersion(w, version)
}

func sameVersion(w *v1.Workload, version uint64) error {
	actual := w.GetMetadata().GetVersion()
	if version == 0 || version == actual {
		return nil
	}
	return &outdated{current: w, err: &state.ConflictError{
		Kind: "workload", Name: w.GetMetadata().GetName(), UID: w.GetMetadata().GetUid(), Expected: version, Actual: actual,
	}}
}

func vanished(m *v1.Metadata) error {
	return refuse(codes.Aborted, "workload %s was at version %d and does not exist any more; apply it without metadata.version to create it anew", m.GetName(), m.GetVersion())
}

func exists(snap *state.Snapshot, m *v1.Metadata) error {
	if snap.WorkloadByName(m.GetNamespace(), m.GetName()).GetMetadata().GetDeleteTime() != nil {
		return refuse(codes.FailedPrecondition, "workload %s is being deleted; wait until it is gone, then create it again", m.GetName())
	}
	return refuse(codes.AlreadyExists, "workload %s exists already in namespace %s", m.GetName(), m.GetNamespace())
}

func orDefault(namespace string) string {
	if namespace == "" {
		return spec.DefaultNamespace
	}
	return namespace
}
