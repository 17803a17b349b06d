package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/server/streams"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/suggest"
)

// workloads is the WorkloadService.
type workloads struct {
	v1.UnsafeWorkloadServiceServer
	*collection[*v1.Workload]
	replicas *collection[*v1.Replica]
	*streams.Streams
}

func newWorkloads(s *Server) *collection[*v1.Workload] {
	c := newCollection[*v1.Workload](s, state.KindWorkload)
	c.prepare, c.remove = s.prepareWorkload, s.removeWorkload
	c.missing, c.exists = notfound.Workload, workloadExists
	c.prunable = func(snap *state.Snapshot, w *v1.Workload, change *v1.PlanChange) bool {
		change.Image = snap.Revision(w.GetStatus().GetRevisionUid()).GetSpec().GetImage()
		return w.GetStatus().GetOwnerUid() == "" // the jobs of a cron go with it
	}
	c.frozen = func(w *v1.Workload) error {
		if w.GetMetadata().GetDeleteTime() == nil {
			return nil
		}
		return core.Refuse(codes.FailedPrecondition, "workload %s is being deleted; wait until it is gone, then create it again", w.GetMetadata().GetName())
	}
	c.present = func(snap *state.Snapshot, stored *v1.Workload) *v1.Workload {
		return s.presentWorkload(snap, stored, false)
	}
	c.followed.touched = touchedWorkloads
	return c
}

func (s *workloads) CreateWorkload(ctx context.Context, request *v1.CreateWorkloadRequest) (*v1.Workload, error) {
	return s.create(ctx, request, request.GetWorkload())
}

func (s *workloads) ApplyWorkload(ctx context.Context, request *v1.ApplyWorkloadRequest) (*v1.ApplyWorkloadResponse, error) {
	w, result, err := s.apply(ctx, request, request.GetWorkload())
	if err != nil {
		return nil, err
	}
	return &v1.ApplyWorkloadResponse{Workload: w, Result: result}, nil
}

func (s *workloads) UpdateWorkload(ctx context.Context, request *v1.UpdateWorkloadRequest) (*v1.Workload, error) {
	return s.update(ctx, request.GetWorkload())
}

func (s *workloads) GetWorkload(ctx context.Context, request *v1.GetWorkloadRequest) (*v1.Workload, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	w := snap.WorkloadByName(namespace, request.GetName())
	if w == nil {
		return nil, notfound.Workload(snap, namespace, request.GetName())
	}
	return s.presentWorkload(snap, w, true), nil
}

func (s *workloads) ListWorkloads(ctx context.Context, request *v1.ListWorkloadsRequest) (*v1.ListWorkloadsResponse, error) {
	items, next, err := s.list(ctx, request.GetPage(), selection[*v1.Workload]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListWorkloadsResponse{Items: items, Next: next}, nil
}

func newReplicas(s *Server) *collection[*v1.Replica] {
	c := newCollection[*v1.Replica](s, state.KindReplica)
	c.present = s.presentReplica
	c.missing = func(snap *state.Snapshot, namespace, name string) error {
		near := suggest.To(name, notfound.Names(c.all(snap, namespace, "")))
		return core.Refuse(codes.NotFound, "replica %s does not exist in namespace %s%s", name, namespace,
			notfound.Hint(near, spec.Hint(namespace, "cloudless ps --all")))
	}
	return c
}

func (s *workloads) GetReplica(ctx context.Context, request *v1.GetReplicaRequest) (*v1.Replica, error) {
	return s.replicas.read(ctx, orDefault(request.GetNamespace()), request.GetName())
}

func (s *workloads) ListReplicas(ctx context.Context, request *v1.ListReplicasRequest) (*v1.ListReplicasResponse, error) {
	items, next, err := s.replicas.list(ctx, request.GetPage(), selection[*v1.Replica]{
		namespace: request.GetSelection().GetNamespace(), labels: request.GetSelection().GetLabels(),
		also: func(r *v1.Replica) bool {
			return (request.GetEnded() || !spec.Ended(r.GetStatus().GetPhase())) &&
				(request.GetWorkload() == "" || r.GetSpec().GetWorkload() == request.GetWorkload()) &&
				(request.GetNode() == "" || r.GetSpec().GetNode() == request.GetNode())
		},
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListReplicasResponse{Items: items, Next: next}, nil
}

func (s *workloads) ScaleWorkload(ctx context.Context, request *v1.ScaleWorkloadRequest) (*v1.Workload, error) {
	return s.changeNamed(ctx, orDefault(request.GetNamespace()), request.GetName(), request.GetVersion(), func(tx *transaction, old *v1.Workload) (*v1.Workload, error) {
		if err := checkScalable(old, request.GetReplicas()); err != nil {
			return nil, err
		}
		if err := checkReplicas(tx.base, old, request.GetReplicas()); err != nil {
			return nil, err
		}
		if old.GetSpec().GetReplicas() == request.GetReplicas() {
			return old, nil
		}
		if err := checkMinAvailable(old, request.GetReplicas()); err != nil {
			return nil, err
		}
		w := proto.CloneOf(old)
		w.Spec.Replicas = proto.Int32(request.GetReplicas())
		tx.batch.Update(w, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, w, "Scaled", fmt.Sprintf("from %d to %d replicas", old.GetSpec().GetReplicas(), request.GetReplicas())))
		return w, nil
	})
}

// AutoscaleWorkload changes the settings of autoscaling. Without settings, the workload keeps the number of replicas that
// it has, or gets one if it sleeps.
func (s *workloads) AutoscaleWorkload(ctx context.Context, request *v1.AutoscaleWorkloadRequest) (*v1.Workload, error) {
	return s.changeNamed(ctx, orDefault(request.GetNamespace()), request.GetName(), request.GetVersion(), func(tx *transaction, old *v1.Workload) (*v1.Workload, error) {
		w := proto.CloneOf(old)
		w.Spec.Autoscale = proto.CloneOf(request.GetAutoscale())
		if owner := old.GetStatus().GetOwner(); owner != "" {
			return nil, checkUpdate(tx.base, old, w)
		}
		if err := spec.Validate(w); err != nil {
			return nil, err
		}
		if err := checkReplicas(tx.base, old, spec.Size(w.GetSpec())); err != nil {
			return nil, err
		}
		spec.Normalize(w)
		if spec.Equal(old.GetSpec(), w.GetSpec()) {
			return old, nil
		}
		var message string
		if w.GetSpec().GetAutoscale() != nil {
			message = "scaled " + spec.ScalingOf(w.GetSpec()).String()
		} else {
			w.Spec.Replicas = proto.Int32(max(1, spec.Replicas(old)))
			spec.ForgetScale(w)
			message = fmt.Sprintf("no longer scaled by the cluster: it keeps %s", spec.Count(int(w.GetSpec().GetReplicas()), "replica"))
		}
		tx.batch.Update(w, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, w, "Autoscaling", message))
		return w, nil
	})
}

func (s *workloads) RestartWorkload(ctx context.Context, request *v1.RestartWorkloadRequest) (*v1.Workload, error) {
	return s.changeNamed(ctx, orDefault(request.GetNamespace()), request.GetName(), 0, func(tx *transaction, old *v1.Workload) (*v1.Workload, error) {
		if err := checkRestartable(old); err != nil {
			return nil, err
		}
		w := proto.CloneOf(old)
		current := tx.base.Revision(old.GetStatus().GetRevisionUid())
		revision := s.revise(tx, w, images.PinnedBy(current))
		revision.Spec.Restart = current.GetSpec().GetRestart() + 1
		if err := filterCalls(tx.base, revision); err != nil {
			revision.Spec.SeccompProfile = current.GetSpec().GetSeccompProfile() // no longer configured
		}
		s.deploy(ctx, tx, old, w, spec.CauseRestart)
		tx.batch.Update(w, old.GetMetadata().GetVersion())
		tx.batch.Create(s.Event(ctx, w, "Restarted", fmt.Sprintf("every replica is replaced by one of revision %d", revision.GetSpec().GetNumber())))
		return w, nil
	})
}

func (s *workloads) DeleteWorkload(ctx context.Context, request *v1.DeleteWorkloadRequest) (*v1.Workload, error) {
	return s.delete(ctx, orDefault(request.GetNamespace()), request.GetName(), request.GetVersion())
}

// removeWorkload begins the deletion of a workload. The loop of replicas completes it.
func (s *Server) removeWorkload(ctx context.Context, tx *transaction, old *v1.Workload) *v1.Workload {
	if old.GetMetadata().GetDeleteTime() != nil {
		return old
	}
	w := proto.CloneOf(old)
	w.Metadata.DeleteTime = timestamppb.New(s.Now())
	tx.batch.Update(w, old.GetMetadata().GetVersion())
	tx.batch.Create(s.Event(ctx, w, "Deleting", "its replicas are being stopped"))
	return w
}

func workloadExists(old *v1.Workload) error {
	m := old.GetMetadata()
	if m.GetDeleteTime() != nil {
		return core.Refuse(codes.FailedPrecondition, "workload %s is being deleted; wait until it is gone, then create it again", m.GetName())
	}
	return core.Refuse(codes.AlreadyExists, "workload %s exists already in namespace %s", m.GetName(), m.GetNamespace())
}

// revise adds the next revision of w to the transaction and points w at it.
func (s *Server) revise(tx *transaction, w *v1.Workload, image images.Pinned) *v1.Revision {
	revision := rollout.Revise(w, state.NewUID())
	secret.Pin(tx.base, revision, s.Now())
	revision.Spec.Image, revision.Spec.Platforms = image.Image, image.Platforms
	tx.batch.Create(revision)
	return revision
}

// filterCalls writes the filter of system calls that the workload names into a new revision, which keeps it when the
// configuration changes.
func filterCalls(snap *state.Snapshot, revision *v1.Revision) error {
	filter, err := spec.SeccompOf(revision.GetSpec().GetWorkload(), snap.Cluster().GetSpec())
	if err != nil {
		return core.Refuse(codes.FailedPrecondition, "%s", err)
	}
	revision.Spec.SeccompProfile = filter
	return nil
}

func orDefault(namespace string) string {
	if namespace == "" {
		return spec.DefaultNamespace
	}
	return namespace
}
