package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// RollbackWorkload makes an earlier revision current again. It runs the same image as before, even if the tag has moved
// since.
func (s *workloads) RollbackWorkload(ctx context.Context, request *v1.RollbackWorkloadRequest) (*v1.Workload, error) {
	receipt, err := core.NewReceipt(ctx, v1.WorkloadService_RollbackWorkload_FullMethodName, request.GetIdempotencyKey(), request)
	if err != nil {
		return nil, err
	}
	namespace := orDefault(request.GetNamespace())
	var restored *registry.Deleted
	shown, _, err := s.once(ctx, receipt, func(tx *transaction) (*v1.Workload, string, error) {
		old := tx.base.WorkloadByName(namespace, request.GetName())
		if old == nil {
			return nil, "", notfound.Workload(tx.base, namespace, request.GetName())
		}
		if err := s.changeable(old, request.GetVersion()); err != nil {
			return nil, "", err
		}
		w, back, err := s.rollBack(ctx, tx, old, request.GetRevision())
		if restored = back; w == old {
			return w, spec.ActionUnchanged, err
		}
		return w, spec.ActionUpdate, err
	})
	if err == nil && restored != nil && restored.Tag != "" {
		s.images.SettleTag(ctx, restored.Repository, restored.Tag, false)
	}
	return shown, err
}

// rollBack returns the workload after the rollback, or old itself if nothing changes, and
// the deleted image that the rollback restores, if any.
func (s *workloads) rollBack(ctx context.Context, tx *transaction, old *v1.Workload, to string) (*v1.Workload, *registry.Deleted, error) {
	current := tx.base.Revision(old.GetStatus().GetRevisionUid())
	target, err := earlierRevision(tx.base, old, current, to)
	if err != nil {
		return nil, nil, err
	}
	if target == current || sameRun(target, current) && !deploying(tx.base, old) {
		return old, nil, nil
	}
	w := proto.CloneOf(old)
	spec.ReturnTo(w, target)
	if err := checkUpdate(tx.base, old, w); err != nil {
		return nil, nil, err
	}
	restored, err := s.restoreImage(ctx, tx.base, tx.batch, old, target)
	if err != nil {
		return nil, nil, err
	}
	if runsToEnd := !spec.HasDeployments(w.GetSpec()); runsToEnd {
		// A new revision does the work of the earlier one again, which may have ended.
		repeated := s.revise(tx, w, images.PinnedBy(target))
		repeated.Spec.Restart = current.GetSpec().GetRestart()
		repeated.Spec.SeccompProfile = target.GetSpec().GetSeccompProfile()
	}
	s.deploy(ctx, tx, old, w, spec.CauseRollback)
	tx.batch.Update(w, old.GetMetadata().GetVersion())
	tx.batch.Create(s.Event(ctx, w, "RolledBack", fmt.Sprintf("from revision %d to revision %d%s",
		current.GetSpec().GetNumber(), target.GetSpec().GetNumber(), images.PinNote(target.GetSpec().GetImage()))))
	return w, restored, nil
}

// deploying reports whether the newest deployment of a workload has not ended yet.
func deploying(snap *state.Snapshot, w *v1.Workload) bool {
	return spec.DeploymentOpen(snap.Deployment(w.GetStatus().GetDeploymentUid()))
}

// sameRun reports whether the replicas of two revisions run the same.
func sameRun(a, b *v1.Revision) bool {
	return a.GetSpec().GetImage() == b.GetSpec().GetImage() && spec.ReplacesNone(a.GetSpec().GetWorkload(), b.GetSpec().GetWorkload())
}

// earlierRevision finds the revision that a word names: by its number, or by the beginning of its image's digest. An
// empty word means the newest one that has succeeded and differs from the current one.
func earlierRevision(snap *state.Snapshot, w *v1.Workload, current *v1.Revision, word string) (*v1.Revision, error) {
	newestFirst := slices.Collect(snap.RevisionsOf(w.GetMetadata().GetUid()))
	slices.Reverse(newestFirst)
	name := w.GetMetadata().GetName()
	if word == "" {
		if good := lastGood(snap, w, current); good != nil {
			return good, nil
		}
		i := slices.IndexFunc(newestFirst, func(r *v1.Revision) bool {
			return r.GetSpec().GetNumber() < current.GetSpec().GetNumber() && !sameRun(r, current)
		})
		if i < 0 {
			return nil, core.Refuse(codes.FailedPrecondition, "workload %s has no earlier revision to go back to; to choose another, see: %s", name,
				spec.Hint(w.GetMetadata().GetNamespace(), "cloudless workload history "+name))
		}
		return newestFirst[i], nil
	}
	number, err := strconv.ParseUint(word, 10, 64)
	i := slices.IndexFunc(newestFirst, func(r *v1.Revision) bool { return r.GetSpec().GetNumber() == number })
	switch {
	case err == nil && i >= 0:
		return newestFirst[i], nil
	case err == nil && len(word) < minDigest:
		return nil, core.Refuse(codes.NotFound, "workload %s has no revision %d; it has %s", name, number, revisionNumbers(newestFirst))
	}
	return revisionWithImage(newestFirst, name, word)
}

// lastGood is the revision of the newest deployment that succeeded and runs something else than the current one, nil if
// there is none.
func lastGood(snap *state.Snapshot, w *v1.Workload, current *v1.Revision) *v1.Revision {
	good := rollout.LastGood(snap.DeploymentsOf(w.GetMetadata().GetUid()), func(d *v1.Deployment) bool {
		r := snap.Revision(d.GetSpec().GetRevisionUid())
		return r != nil && !sameRun(r, current)
	})
	return snap.Revision(good.GetSpec().GetRevisionUid())
}

// minDigest is how many characters of a digest identify an image.
const minDigest = 6

var digestBeginning = regexp.MustCompile(`^(sha256:)?[0-9a-f]+$`)

// revisionWithImage finds the newest revision whose image has a digest with that beginning.
func revisionWithImage(newestFirst []*v1.Revision, workload, word string) (*v1.Revision, error) {
	if !digestBeginning.MatchString(word) || !strings.Contains(word, ":") && len(word) < minDigest {
		return nil, core.Refuse(codes.InvalidArgument, "%.80q is neither a number nor the beginning of a digest; see: cloudless workload history %s", word, workload)
	}
	beginning := strings.TrimPrefix(word, "sha256:")
	var found *v1.Revision
	for _, r := range newestFirst {
		_, digest, _ := strings.Cut(r.GetSpec().GetImage(), "@sha256:")
		switch {
		case digest == "" || !strings.HasPrefix(digest, beginning):
		case found == nil:
			found = r
		case found.GetSpec().GetImage() != r.GetSpec().GetImage():
			return nil, core.Refuse(codes.InvalidArgument, "revisions of workload %s have several images that begin with %s: give more characters", workload, beginning)
		}
	}
	if found == nil {
		return nil, core.Refuse(codes.NotFound, "workload %s has no revision with an image that begins with %s; see: cloudless workload history %s", workload, beginning, workload)
	}
	return found, nil
}

func revisionNumbers(newestFirst []*v1.Revision) string {
	var numbers []string
	for _, r := range slices.Backward(newestFirst) {
		numbers = append(numbers, revisionNumber(r))
	}
	return core.Listed(numbers)
}

// restoreImage makes the transaction depend on the image of an earlier revision. If the
// image was deleted and can still be restored, the transaction restores it.
func (s *Server) restoreImage(ctx context.Context, snap *state.Snapshot, b *state.Batch, w *v1.Workload, target *v1.Revision) (*registry.Deleted, error) {
	name, err := image.ParseName(target.GetSpec().GetImage())
	if err != nil || !name.Local() || name.Digest == "" {
		return nil, err // the image is in a registry outside the cluster
	}
	err = s.images.Have(ctx, name.Repository, name.Digest)
	if errors.Is(err, registry.ErrNotFound) {
		return nil, core.Refuse(codes.FailedPrecondition, "the image of revision %d of workload %s (%s@%s) was deleted and no server has it any more: push it again, or go back to another revision; see: cloudless workload history %s",
			target.GetSpec().GetNumber(), w.GetMetadata().GetName(), name.Repository, name.Digest, w.GetMetadata().GetName())
	}
	if err != nil {
		return nil, err
	}
	keepers := images.KeepersOf(snap, name.Repository, name.Digest)
	var deleted *registry.Deleted
	if images.TagFor(snap, name.Repository, name.Digest) == nil {
		deleted = s.images.DeletedImage(snap, name)
	}
	if deleted != nil {
		made := s.images.TagOf(snap, deleted.Repository, deleted.Tag)
		s.images.GiveBack(made, *deleted)
		s.images.PutTag(snap, b, made)
		keepers = slices.DeleteFunc(keepers, func(k images.TagVersion) bool { return k.UID == made.GetMetadata().GetUid() })
	}
	images.Pinned{Keepers: keepers}.RelyOn(b)
	return deleted, nil
}

func (s *workloads) GetRevision(ctx context.Context, request *v1.GetRevisionRequest) (*v1.Revision, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	namespace, name := orDefault(request.GetNamespace()), request.GetName()
	workload := name[:max(0, strings.LastIndexByte(name, '-'))] // see revisionName
	for r := range snap.RevisionsOf(workload) {
		if r.GetMetadata().GetName() == name && r.GetMetadata().GetNamespace() == namespace {
			return r, nil
		}
	}
	return nil, core.Refuse(codes.NotFound, "revision %s does not exist in namespace %s, or is no longer kept; see the others with: %s",
		name, namespace, spec.Hint(namespace, "cloudless get revisions"))
}

// ListRevisions lists the revisions of a workload that are kept, newest first. Without a workload, it lists those of all
// workloads by uid.
func (s *workloads) ListRevisions(ctx context.Context, request *v1.ListRevisionsRequest) (*v1.ListRevisionsResponse, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil {
		return nil, err
	}
	if request.GetWorkload() == "" {
		items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Revision] { return revisionsAfter(snap, after) }, uidOf[*v1.Revision],
			func(r *v1.Revision) bool {
				namespace := r.GetMetadata().GetNamespace()
				return (request.GetNamespace() == "" || namespace == request.GetNamespace()) && core.Caller(ctx).Sees("revision", namespace)
			})
		return &v1.ListRevisionsResponse{Items: items, Next: next}, err
	}
	namespace := orDefault(request.GetNamespace())
	w := snap.WorkloadByName(namespace, request.GetWorkload())
	if w == nil {
		return nil, notfound.Workload(snap, namespace, request.GetWorkload())
	}
	newestFirst := slices.Collect(snap.RevisionsOf(w.GetMetadata().GetUid()))
	slices.Reverse(newestFirst)
	items, next, err := page(request.GetPage(), func(after string) iter.Seq[*v1.Revision] {
		return revisionsBefore(newestFirst, after)
	}, revisionNumber, func(*v1.Revision) bool { return true })
	if err != nil {
		return nil, err
	}
	return &v1.ListRevisionsResponse{Items: items, Next: next}, nil
}

// revisionsAfter yields the revisions of all workloads with a higher uid.
func revisionsAfter(snap *state.Snapshot, uid string) iter.Seq[*v1.Revision] {
	return func(yield func(*v1.Revision) bool) {
		for r := range snap.Revisions() {
			if r.GetMetadata().GetUid() > uid && !yield(r) {
				return
			}
		}
	}
}

func revisionNumber(r *v1.Revision) string { return strconv.FormatUint(r.GetSpec().GetNumber(), 10) }

// revisionsBefore yields those with a smaller number, whether or not a revision has that
// number. It yields all if the text is not a number.
func revisionsBefore(all []*v1.Revision, number string) iter.Seq[*v1.Revision] {
	return func(yield func(*v1.Revision) bool) {
		before, err := strconv.ParseUint(number, 10, 64)
		for _, r := range all {
			if (err != nil || r.GetSpec().GetNumber() < before) && !yield(r) {
				return
			}
		}
	}
}
