package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/assignment"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// imageService is the ImageService. What a name stands for is in the replicated
// state, and what an image consists of in the registry.
type imageService struct {
	v1.UnsafeImageServiceServer
	*Server
	logins *collection[*v1.Login]
}

const (
	imageReady   = "ready"
	imageDeleted = "deleted"
)

func (s *imageService) GetImage(ctx context.Context, request *v1.GetImageRequest) (*v1.Image, error) {
	name, err := localImage(request.GetName())
	if err != nil {
		return nil, err
	}
	snap, err := s.readTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := imageUses(snap)
	found, err := s.resolve(ctx, snap, name)
	if err == nil {
		return presentImage(name.Repository, name.Tag, found, uses), nil
	}
	if !errors.Is(err, registry.ErrNotFound) {
		return nil, err
	}
	deleted := s.deletedImage(snap, name)
	if deleted == nil {
		return nil, missingImage(snap, request.GetName())
	}
	return s.presentDeleted(ctx, *deleted, uses)
}

// resolve reads what an image name stands for, from another server if need be.
func (s *Server) resolve(ctx context.Context, snap *state.Snapshot, name image.Name) (registry.Descriptor, error) {
	digest := digestIn(snap, name.Repository, name.Reference())
	if digest == "" {
		return registry.Descriptor{}, registry.ErrNotFound
	}
	if s.promised(snap, name.Repository, digest) {
		if err := s.have(ctx, name.Repository, digest); err != nil {
			return registry.Descriptor{}, err
		}
	}
	found, err := s.registry.Resolve(ctx, name.Repository, digest)
	if t := snap.Tag(name.Repository, name.Tag); err == nil && t.GetDigest() == digest {
		found.PushTime = t.GetPushTime().AsTime()
	}
	return found, err
}

// localImage reads the name of an image in the cluster's own registry.
func localImage(from string) (image.Name, error) {
	name, err := parseImage("name", from)
	if err == nil && !name.Local() {
		err = core.Refuse(codes.NotFound, "image %s is not in the cluster's own registry", from)
	}
	return name, err
}

// deletedImage is what was deleted last under the name, if it can be had back.
func (s *Server) deletedImage(snap *state.Snapshot, name image.Name) *registry.Deleted {
	for _, d := range s.deletedIn(snap) {
		if deletedAs(d, name.Repository, name.Reference()) {
			return &d
		}
	}
	return nil
}

func (s *imageService) ListImages(ctx context.Context, request *v1.ListImagesRequest) (*v1.ListImagesResponse, error) {
	snap, err := s.readTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := imageUses(snap)
	all, err := s.readyImages(ctx, snap, uses)
	if err != nil {
		return nil, err
	}
	untagged, err := s.untaggedImages(ctx, snap, uses)
	if err != nil {
		return nil, err
	}
	all = append(all, untagged...)
	selector, err := spec.ParseSelector(request.GetLabels())
	if err != nil {
		return nil, err
	}
	if request.GetDeleted() {
		for _, d := range s.deletedIn(snap) {
			shown, err := s.presentDeleted(ctx, d, uses)
			if err != nil {
				return nil, err
			}
			all = append(all, shown)
		}
	}
	slices.SortFunc(all, func(a, b *v1.Image) int { return strings.Compare(imageCursor(a), imageCursor(b)) })
	items, next, err := page(request.GetPage(), imagesAfter(all), imageCursor, func(i *v1.Image) bool {
		return selector.Matches(i.GetMetadata().GetLabels())
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListImagesResponse{Items: items, Next: next}, nil
}

// imageCursor tells images of the same name apart: the present one and those
// that were deleted.
func imageCursor(i *v1.Image) string {
	return i.GetMetadata().GetName() + " " + i.GetStatus().GetPhase() + " " + i.GetStatus().GetDigest()
}

// imagesAfter lets a sorted slice of images be read in pages.
func imagesAfter(all []*v1.Image) func(after string) iter.Seq[*v1.Image] {
	return func(after string) iter.Seq[*v1.Image] {
		i, found := slices.BinarySearchFunc(all, after, func(i *v1.Image, cursor string) int {
			return strings.Compare(imageCursor(i), cursor)
		})
		if found {
			i++
		}
		return slices.Values(all[i:])
	}
}

// readyImages are all that have a tag. Of what is still on its way to this
// server only the digest is known here.
func (s *Server) readyImages(ctx context.Context, snap *state.Snapshot, uses imageUsers) ([]*v1.Image, error) {
	var all []*v1.Image
	for t := range snap.Tags() {
		if t.GetDigest() == "" {
			continue
		}
		repository, tag := tagName(t)
		found, err := s.registry.Resolve(ctx, repository, t.GetDigest())
		if errors.Is(err, registry.ErrNotFound) {
			found = registry.Descriptor{Digest: t.GetDigest()}
		} else if err != nil {
			return nil, err
		}
		found.PushTime = t.GetPushTime().AsTime()
		all = append(all, presentImage(repository, tag, found, uses))
	}
	return all, nil
}

// untaggedImages are those that only revisions name, by their digests.
func (s *Server) untaggedImages(ctx context.Context, snap *state.Snapshot, uses imageUsers) ([]*v1.Image, error) {
	deleted := map[string]bool{}
	for _, d := range s.deletedIn(snap) {
		deleted[d.Repository+"@"+d.Digest] = true
	}
	var all []*v1.Image
	for name := range uses.digests() {
		repository, digest, _ := strings.Cut(name, "@")
		if deleted[name] || tagFor(snap, repository, digest) != nil {
			continue
		}
		found, err := s.registry.Resolve(ctx, repository, digest)
		if errors.Is(err, registry.ErrNotFound) {
			continue // deleted for good
		}
		if err != nil {
			return nil, err
		}
		shown := presentImage(repository, "", found, uses)
		shown.Metadata.Name = name
		all = append(all, shown)
	}
	return all, nil
}

func presentImage(repository, tag string, found registry.Descriptor, uses imageUsers) *v1.Image {
	name := repository
	if tag != "" {
		name += ":" + tag
	}
	pushed := timestamppb.New(found.PushTime)
	return &v1.Image{
		ApiVersion: spec.APIVersion,
		Kind:       "Image",
		Metadata:   &v1.Metadata{Name: name, CreateTime: pushed, Labels: found.Labels},
		Status: &v1.ImageStatus{
			Repository: repository, Tag: tag, Digest: found.Digest, Size: found.Size, Platforms: found.Platforms,
			Phase: imageReady, PushTime: pushed, UsedBy: uses.of(repository, tag, found.Digest),
			KeptBy: uses.earlier[repository+"@"+found.Digest],
		},
	}
}

func (s *Server) presentDeleted(ctx context.Context, d registry.Deleted, uses imageUsers) (*v1.Image, error) {
	found, err := s.registry.Resolve(ctx, d.Repository, d.Digest)
	if errors.Is(err, registry.ErrNotFound) { // gone this moment, or by another way
		found = registry.Descriptor{Digest: d.Digest, PushTime: d.DeleteTime}
	} else if err != nil {
		return nil, err
	}
	shown := presentImage(d.Repository, d.Tag, found, uses)
	shown.Metadata.DeleteTime = timestamppb.New(d.DeleteTime)
	shown.Status.Phase, shown.Status.ExpireTime = imageDeleted, timestamppb.New(d.ExpireTime)
	return shown, nil
}

func (s *imageService) DeleteImage(ctx context.Context, request *v1.DeleteImageRequest) (*v1.Image, error) {
	name, err := localImage(request.GetName())
	if err != nil {
		return nil, err
	}
	snap, err := s.readTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := imageUses(snap)
	digest := digestIn(snap, name.Repository, name.Reference())
	found, err := s.registry.Resolve(ctx, name.Repository, nonEmpty(digest, name.Reference()))
	if tagged := !isDigest(name.Reference()) && digest != ""; tagged && errors.Is(err, registry.ErrNotFound) {
		found, err = registry.Descriptor{Digest: digest}, nil // it can be deleted all the same
	}
	if digest == "" || errors.Is(err, registry.ErrNotFound) {
		return s.deleteAgain(ctx, snap, request, name, uses)
	}
	if err != nil {
		return nil, err
	}
	shown := presentImage(name.Repository, name.Tag, found, uses)
	if err := deletable(shown, request); err != nil {
		return nil, err
	}
	gone, err := s.deleteTags(ctx, name.Repository, name.Reference(), request.GetNow(), request.GetForce())
	if err != nil {
		return nil, err
	}
	if len(gone) == 0 { // by somebody else, this moment
		return nil, missingImage(snap, request.GetName())
	}
	shown.Status.Phase = imageDeleted
	shown.Metadata.DeleteTime = timestamppb.New(gone[0].DeleteTime)
	shown.Status.ExpireTime = timestamppb.New(gone[0].ExpireTime)
	return shown, s.afterDeletion(ctx, shown, request.GetNow())
}

// afterDeletion frees the room at once if nobody can have the image back.
func (s *Server) afterDeletion(ctx context.Context, shown *v1.Image, now bool) error {
	if now {
		if _, err := s.registry.Collect(ctx, registry.CollectOptions{Keep: s.keepImages(s.Store.Snapshot())}); err != nil {
			return err
		}
	}
	s.tell(ctx, shown, "Deleted", deletedUntil(shown, now))
	return nil
}

func deletable(i *v1.Image, request *v1.DeleteImageRequest) error {
	users := i.GetStatus().GetUsedBy()
	if len(users) == 0 || request.GetForce() {
		return nil
	}
	return core.Refuse(codes.FailedPrecondition, "image %s is used by %s; remove what uses it first, or delete it all the same with --force",
		request.GetName(), listed(users))
}

// deleteAgain is about an image that was deleted before: with now, it goes.
func (s *imageService) deleteAgain(ctx context.Context, snap *state.Snapshot, request *v1.DeleteImageRequest, name image.Name, uses imageUsers) (*v1.Image, error) {
	deleted := s.deletedImage(snap, name)
	if deleted == nil {
		return nil, missingImage(snap, request.GetName())
	}
	shown, err := s.presentDeleted(ctx, *deleted, uses)
	if err != nil || !request.GetNow() {
		return shown, err
	}
	if err := deletable(shown, request); err != nil {
		return nil, err
	}
	err = s.forgetDeleted(ctx, func(d registry.Deleted) bool {
		return d.Repository == deleted.Repository && d.Tag == deleted.Tag && d.Digest == deleted.Digest
	})
	if err != nil {
		return nil, err
	}
	users := imageUses(s.Store.Snapshot()).of(deleted.Repository, "", deleted.Digest) // who has come to use it meanwhile keeps it
	if len(users) == 0 || request.GetForce() {
		if err := s.registry.Forget(*deleted); err != nil {
			return nil, err
		}
	}
	shown.Status.ExpireTime = timestamppb.New(s.Now())
	return shown, s.afterDeletion(ctx, shown, true)
}

func deletedUntil(i *v1.Image, now bool) string {
	if now {
		return "it cannot be had back"
	}
	return "it can be had back until " + i.GetStatus().GetExpireTime().AsTime().Format(time.RFC3339)
}

// tell writes an event about an image. The image is what it is even if the
// event could not be written.
func (s *Server) tell(ctx context.Context, about *v1.Image, reason, message string) {
	_, err := s.Propose(ctx, func(_ *state.Snapshot, b *state.Batch) error {
		e := s.Event(ctx, &v1.Workload{Metadata: &v1.Metadata{Name: about.GetMetadata().GetName()}}, reason, message)
		e.Spec.ObjectKind = "image"
		b.Create(e)
		return nil
	})
	if err != nil {
		s.Logger.WarnContext(ctx, "an event could not be written", "reason", reason, "error", err)
	}
}

func (s *imageService) RestoreImage(ctx context.Context, request *v1.RestoreImageRequest) (*v1.Image, error) {
	name, err := localImage(request.GetName())
	if err != nil {
		return nil, err
	}
	if snap, err := s.readTags(ctx); err != nil {
		return nil, err
	} else if deleted := s.deletedImage(snap, name); deleted != nil {
		err := s.have(ctx, deleted.Repository, deleted.Digest)
		if errors.Is(err, registry.ErrNotFound) {
			return nil, core.Refuse(codes.NotFound, "image %s is deleted and no server has it any more: push it again", request.GetName())
		}
		if err != nil {
			return nil, err
		}
	}
	back, err := s.restoreTag(ctx, name.Repository, name.Reference())
	switch {
	case errors.Is(err, errNotDeleted):
		return nil, core.Refuse(codes.FailedPrecondition, "image %s is not deleted", request.GetName())
	case errors.Is(err, registry.ErrNotFound):
		if _, err := s.registry.Digest(ctx, name.Repository, name.Reference()); err == nil && isDigest(name.Reference()) {
			return nil, core.Refuse(codes.FailedPrecondition, "image %s is not deleted", request.GetName())
		}
		return nil, core.Refuse(codes.NotFound, "there is no deleted image %s to have back; see: cloudless image ls --deleted", request.GetName())
	case errors.Is(err, errTaken):
		return nil, core.Refuse(codes.FailedPrecondition, "image %s was pushed anew since it was deleted; delete the new one first: cloudless image rm %s",
			request.GetName(), request.GetName())
	case err != nil:
		return nil, err
	}
	snap := s.Store.Snapshot()
	name.Tag, name.Digest = back.Tag, back.Digest
	found, err := s.resolve(ctx, snap, name)
	if err != nil {
		return nil, err
	}
	shown := presentImage(back.Repository, back.Tag, found, imageUses(snap))
	s.tell(ctx, shown, "Restored", "")
	return shown, nil
}

func (s *imageService) PruneImages(ctx context.Context, request *v1.PruneImagesRequest) (*v1.PruneImagesResponse, error) {
	snap, err := s.readTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := imageUses(snap)
	all, err := s.readyImages(ctx, snap, uses)
	if err != nil {
		return nil, err
	}
	answer := &v1.PruneImagesResponse{}
	options := registry.CollectOptions{Keep: keepRevisions(snap), Now: request.GetNow(), DryRun: request.GetDryRun()}
	for _, i := range all {
		st := i.GetStatus()
		if len(st.GetUsedBy()) > 0 {
			continue
		}
		if request.GetDryRun() {
			answer.Items = append(answer.Items, i)
			if request.GetNow() {
				options.Without = append(options.Without, registry.Deleted{Repository: st.GetRepository(), Tag: st.GetTag(), Digest: st.GetDigest()})
			}
			continue
		}
		gone, err := s.deleteTags(ctx, st.GetRepository(), st.GetTag(), request.GetNow(), false)
		if err != nil {
			return nil, err
		}
		if len(gone) == 0 {
			continue
		}
		st.Phase, st.ExpireTime = imageDeleted, timestamppb.New(gone[0].ExpireTime)
		answer.Items = append(answer.Items, i)
		s.tell(ctx, i, "Deleted", "nothing used it; "+deletedUntil(i, request.GetNow()))
	}
	if !request.GetDryRun() {
		if request.GetNow() {
			used := keepRevisions(snap)
			if err := s.forgetDeleted(ctx, func(d registry.Deleted) bool { return !used(d.Repository, d.Digest) }); err != nil {
				return nil, err
			}
		}
		options.Keep = s.keepImages(s.Store.Snapshot())
	}
	answer.FreedBytes, err = s.registry.Collect(ctx, options)
	return answer, err
}

// collectInterval is how often blobs that belong to nothing are removed.
const collectInterval = time.Hour

// pruneBlobs removes, now and then, what no image needs.
func (s *Server) pruneBlobs(ctx context.Context) error {
	ticker := time.NewTicker(collectInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		freed, err := s.registry.Collect(ctx, registry.CollectOptions{Keep: s.keepImages(s.Store.Snapshot())})
		if err != nil && ctx.Err() == nil {
			s.Logger.WarnContext(ctx, "images could not be collected, will try again", "error", err, "in", collectInterval)
		}
		if freed > 0 {
			s.Logger.InfoContext(ctx, "removed what no image needs", "bytes", freed)
		}
	}
}

// imageUsers are the workloads that use an image, by repository:tag and by
// repository@digest, and the earlier revisions that could, by repository@digest.
type imageUsers struct{ now, earlier map[string][]string }

// imageUses finds out which images are used: by the current revision of a
// workload, by those that still run, and by those that can be rolled back to.
func imageUses(snap *state.Snapshot) imageUsers {
	uses := imageUsers{now: map[string][]string{}, earlier: map[string][]string{}}
	for w := range snap.Workloads("", "") {
		revisions := map[string]bool{w.GetStatus().GetRevisionUid(): true}
		for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
			if assignment.Holds(r, r.GetSpec().GetNodeUid()) {
				revisions[r.GetSpec().GetRevisionUid()] = true
			}
		}
		user := w.GetMetadata().GetNamespace() + "/" + w.GetMetadata().GetName()
		for uid := range revisions {
			uses.add(user, snap.Revision(uid).GetSpec())
		}
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			if r.GetMetadata().GetUid() != w.GetStatus().GetRevisionUid() {
				uses.addEarlier(user+":"+revisionNumber(r), r.GetSpec())
			}
		}
	}
	return uses
}

func (u imageUsers) add(user string, revision *v1.RevisionSpec) {
	for _, from := range []string{revision.GetImage(), revision.GetWorkload().GetImage()} {
		name, err := image.ParseName(from)
		if err != nil || !name.Local() {
			continue
		}
		for _, key := range []string{name.Repository + "@" + name.Digest, name.Repository + ":" + name.Tag} {
			if !slices.Contains(u.now[key], user) {
				u.now[key] = append(u.now[key], user)
			}
		}
	}
}

func (u imageUsers) addEarlier(revision string, is *v1.RevisionSpec) {
	if name, err := image.ParseName(is.GetImage()); err == nil && name.Local() && name.Digest != "" {
		key := name.Repository + "@" + name.Digest
		u.earlier[key] = append(u.earlier[key], revision)
	}
}

// digests are all images that revisions name, as repository@digest.
func (u imageUsers) digests() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name := range u.now {
			if strings.Contains(name, "@sha256:") && !yield(name) {
				return
			}
		}
		for name := range u.earlier {
			if _, twice := u.now[name]; !twice && !yield(name) {
				return
			}
		}
	}
}

func (u imageUsers) of(repository, tag, digest string) []string {
	users := slices.Clone(u.now[repository+"@"+digest])
	if tag != "" {
		users = append(users, u.now[repository+":"+tag]...)
	}
	slices.Sort(users)
	return slices.Compact(users)
}

// keepRevisions keeps what any revision names, so that a workload can go back.
func keepRevisions(snap *state.Snapshot) registry.Keep {
	named := map[string]bool{}
	for w := range snap.Workloads("", "") {
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			named[r.GetSpec().GetImage()] = true
		}
	}
	return func(repository, digest string) bool {
		return named[image.Name{Registry: image.ClusterRegistry, Repository: repository}.Pinned(digest)]
	}
}

// keepImages keeps also what a tag stands for, or stood for when it was deleted,
// until it can no longer be had back: the tags of this server may lag behind.
func (s *Server) keepImages(snap *state.Snapshot) registry.Keep {
	used := keepRevisions(snap)
	named := map[string]bool{}
	for _, d := range s.deletedIn(snap) {
		named[d.Repository+"@"+d.Digest] = true
	}
	for t := range snap.Tags() {
		repository, _ := tagName(t)
		named[repository+"@"+t.GetDigest()] = true
	}
	return func(repository, digest string) bool {
		return named[repository+"@"+digest] || used(repository, digest)
	}
}

// listed is a list for a sentence, cut where it gets long.
func listed(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// unpushedImage says what to do about an image that a workload cannot have.
func (s *Server) unpushedImage(snap *state.Snapshot, from string, name image.Name) error {
	if deleted := s.deletedImage(snap, name); deleted != nil {
		return core.Refuse(codes.FailedPrecondition, "image %s was deleted; have it back with: cloudless image restore %s", from, from)
	}
	if near := nearestImage(snap, from); near != "" {
		return core.Refuse(codes.FailedPrecondition, "image %s is not in the cluster's registry; did you mean %s?", from, near)
	}
	return core.Refuse(codes.FailedPrecondition,
		"image %s is not in the cluster's registry; push it first (cloudless run ./%s does), or name the registry it is in, such as %s",
		from, path.Base(name.Repository), name.Public())
}

func parseImage(field, from string) (image.Name, error) {
	name, err := image.ParseName(from)
	if err != nil {
		return image.Name{}, &spec.Error{Violations: []spec.Violation{{Field: field, Message: err.Error()}}}
	}
	return name, nil
}
