package server

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/roles"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/images"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// imageService is the ImageService. The replicated state maps names to digests; the
// registry holds the content.
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
	snap, err := s.images.ReadTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := images.UsesOf(snap).SeenBy(core.Caller(ctx))
	found, err := s.images.Resolve(ctx, snap, name)
	if err == nil {
		return presentImage(name.Repository, name.Tag, found, uses), nil
	}
	if !errors.Is(err, registry.ErrNotFound) {
		return nil, err
	}
	deleted := s.images.DeletedImage(snap, name)
	if deleted == nil {
		return nil, notfound.Image(snap, request.GetName())
	}
	return s.presentDeleted(ctx, *deleted, uses)
}

// localImage parses the name of an image in the cluster's own registry.
func localImage(from string) (image.Name, error) {
	name, err := images.ParseName("name", from)
	if err == nil && !name.Local() {
		err = core.Refuse(codes.NotFound, "image %s is not in the cluster's own registry", from)
	}
	return name, err
}

func (s *imageService) ListImages(ctx context.Context, request *v1.ListImagesRequest) (*v1.ListImagesResponse, error) {
	snap, err := s.images.ReadTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := images.UsesOf(snap).SeenBy(core.Caller(ctx))
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
		for _, d := range s.images.DeletedIn(snap) {
			shown, err := s.presentDeleted(ctx, d, uses)
			if err != nil {
				return nil, err
			}
			all = append(all, shown)
		}
	}
	slices.SortFunc(all, func(a, b *v1.Image) int { return strings.Compare(imageCursor(a), imageCursor(b)) })
	p := core.Caller(ctx)
	items, next, err := page(request.GetPage(), imagesAfter(all), imageCursor, func(i *v1.Image) bool {
		return p.Sees("image", roles.NamespaceOfImage(i.GetStatus().GetRepository())) && selector.Matches(i.GetMetadata().GetLabels())
	})
	if err != nil {
		return nil, err
	}
	return &v1.ListImagesResponse{Items: items, Next: next}, nil
}

// imageCursor distinguishes images of the same name: the current one and the deleted ones.
func imageCursor(i *v1.Image) string {
	return i.GetMetadata().GetName() + " " + i.GetStatus().GetPhase() + " " + i.GetStatus().GetDigest()
}

// imagesAfter makes a sorted slice of images readable in pages.
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

// readyImages returns all images with a tag. If this server has not copied an image yet, it
// knows only the digest.
func (s *Server) readyImages(ctx context.Context, snap *state.Snapshot, uses images.Users) ([]*v1.Image, error) {
	var all []*v1.Image
	for t := range snap.Tags() {
		if t.GetDigest() == "" {
			continue
		}
		repository, tag := images.TagName(t)
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

// untaggedImages returns the images that only revisions name, by their digests.
func (s *Server) untaggedImages(ctx context.Context, snap *state.Snapshot, uses images.Users) ([]*v1.Image, error) {
	deleted := map[string]bool{}
	for _, d := range s.images.DeletedIn(snap) {
		deleted[d.Repository+"@"+d.Digest] = true
	}
	var all []*v1.Image
	for name := range uses.Digests() {
		repository, digest, _ := strings.Cut(name, "@")
		if deleted[name] || images.TagFor(snap, repository, digest) != nil {
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

func presentImage(repository, tag string, found registry.Descriptor, uses images.Users) *v1.Image {
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
			Phase: imageReady, PushTime: pushed, UsedBy: uses.Of(repository, tag, found.Digest),
			KeptBy: uses.EarlierOf(repository, found.Digest),
		},
	}
}

func (s *Server) presentDeleted(ctx context.Context, d registry.Deleted, uses images.Users) (*v1.Image, error) {
	found, err := s.registry.Resolve(ctx, d.Repository, d.Digest)
	if errors.Is(err, registry.ErrNotFound) { // purged a moment ago
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
	snap, err := s.images.ReadTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := images.UsesOf(snap).SeenBy(core.Caller(ctx))
	digest := images.DigestIn(snap, name.Repository, name.Reference())
	found, err := s.registry.Resolve(ctx, name.Repository, cmp.Or(digest, name.Reference()))
	if tagged := !images.IsDigest(name.Reference()) && digest != ""; tagged && errors.Is(err, registry.ErrNotFound) {
		found, err = registry.Descriptor{Digest: digest}, nil // its tag can still be deleted
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
	gone, err := s.images.DeleteTags(ctx, name.Repository, name.Reference(), request.GetNow(), request.GetForce())
	if err != nil {
		return nil, err
	}
	if len(gone) == 0 { // another call deleted it a moment ago
		return nil, notfound.Image(snap, request.GetName())
	}
	shown.Status.Phase = imageDeleted
	shown.Metadata.DeleteTime = timestamppb.New(gone[0].DeleteTime)
	shown.Status.ExpireTime = timestamppb.New(gone[0].ExpireTime)
	return shown, s.afterDeletion(ctx, shown, request.GetNow())
}

// afterDeletion frees the space at once if the image cannot be restored.
func (s *Server) afterDeletion(ctx context.Context, shown *v1.Image, now bool) error {
	if now {
		if _, err := s.registry.Collect(ctx, registry.CollectOptions{Keep: s.images.Keep(s.Store.Snapshot())}); err != nil {
			return err
		}
	}
	s.recordEvent(ctx, shown, "Deleted", restorableText(shown, now))
	return nil
}

func deletable(i *v1.Image, request *v1.DeleteImageRequest) error {
	users := i.GetStatus().GetUsedBy()
	if len(users) == 0 || request.GetForce() {
		return nil
	}
	return core.Refuse(codes.FailedPrecondition, "image %s is used by %s; remove what uses it first, or delete it all the same with --force",
		request.GetName(), core.Listed(users))
}

// deleteAgain handles an image that was deleted before: with now, it removes the image for
// good.
func (s *imageService) deleteAgain(ctx context.Context, snap *state.Snapshot, request *v1.DeleteImageRequest, name image.Name, uses images.Users) (*v1.Image, error) {
	deleted := s.images.DeletedImage(snap, name)
	if deleted == nil {
		return nil, notfound.Image(snap, request.GetName())
	}
	shown, err := s.presentDeleted(ctx, *deleted, uses)
	if err != nil || !request.GetNow() {
		return shown, err
	}
	if err := deletable(shown, request); err != nil {
		return nil, err
	}
	err = s.images.ForgetDeleted(ctx, func(d registry.Deleted) bool {
		return d.Repository == deleted.Repository && d.Tag == deleted.Tag && d.Digest == deleted.Digest
	})
	if err != nil {
		return nil, err
	}
	users := images.UsesOf(s.Store.Snapshot()).Of(deleted.Repository, "", deleted.Digest) // an image that has come into use meanwhile stays
	if len(users) == 0 || request.GetForce() {
		if err := s.registry.Forget(*deleted); err != nil {
			return nil, err
		}
	}
	shown.Status.ExpireTime = timestamppb.New(s.Now())
	return shown, s.afterDeletion(ctx, shown, true)
}

func restorableText(i *v1.Image, now bool) string {
	if now {
		return "it cannot be restored"
	}
	return "it can be restored until " + i.GetStatus().GetExpireTime().AsTime().Format(time.RFC3339)
}

// recordEvent writes an event about an image. If that fails, the change of the image still
// counts.
func (s *Server) recordEvent(ctx context.Context, about *v1.Image, reason, message string) {
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
	if snap, err := s.images.ReadTags(ctx); err != nil {
		return nil, err
	} else if deleted := s.images.DeletedImage(snap, name); deleted != nil {
		err := s.images.Have(ctx, deleted.Repository, deleted.Digest)
		if errors.Is(err, registry.ErrNotFound) {
			return nil, core.Refuse(codes.NotFound, "image %s is deleted and no server has it any more: push it again", request.GetName())
		}
		if err != nil {
			return nil, err
		}
	}
	back, err := s.images.RestoreTag(ctx, name.Repository, name.Reference())
	switch {
	case errors.Is(err, images.ErrNotDeleted):
		return nil, core.Refuse(codes.FailedPrecondition, "image %s is not deleted", request.GetName())
	case errors.Is(err, registry.ErrNotFound):
		if _, err := s.registry.Digest(ctx, name.Repository, name.Reference()); err == nil && images.IsDigest(name.Reference()) {
			return nil, core.Refuse(codes.FailedPrecondition, "image %s is not deleted", request.GetName())
		}
		return nil, core.Refuse(codes.NotFound, "there is no deleted image %s to restore; see: cloudless image ls --deleted", request.GetName())
	case errors.Is(err, images.ErrTaken):
		return nil, core.Refuse(codes.FailedPrecondition, "image %s was pushed again since it was deleted; delete the new one first: cloudless image rm %s",
			request.GetName(), request.GetName())
	case err != nil:
		return nil, err
	}
	snap := s.Store.Snapshot()
	name.Tag, name.Digest = back.Tag, back.Digest
	found, err := s.images.Resolve(ctx, snap, name)
	if err != nil {
		return nil, err
	}
	shown := presentImage(back.Repository, back.Tag, found, images.UsesOf(snap).SeenBy(core.Caller(ctx)))
	s.recordEvent(ctx, shown, "Restored", "")
	return shown, nil
}

func (s *imageService) PruneImages(ctx context.Context, request *v1.PruneImagesRequest) (*v1.PruneImagesResponse, error) {
	snap, err := s.images.ReadTags(ctx)
	if err != nil {
		return nil, err
	}
	uses := images.UsesOf(snap).SeenBy(core.Caller(ctx))
	all, err := s.readyImages(ctx, snap, uses)
	if err != nil {
		return nil, err
	}
	answer := &v1.PruneImagesResponse{}
	options := registry.CollectOptions{Keep: images.KeepRevisions(snap), Now: request.GetNow(), DryRun: request.GetDryRun()}
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
		gone, err := s.images.DeleteTags(ctx, st.GetRepository(), st.GetTag(), request.GetNow(), false)
		if err != nil {
			return nil, err
		}
		if len(gone) == 0 {
			continue
		}
		st.Phase, st.ExpireTime = imageDeleted, timestamppb.New(gone[0].ExpireTime)
		answer.Items = append(answer.Items, i)
		s.recordEvent(ctx, i, "Deleted", "nothing used it; "+restorableText(i, request.GetNow()))
	}
	if !request.GetDryRun() {
		if request.GetNow() {
			used := images.KeepRevisions(snap)
			if err := s.images.ForgetDeleted(ctx, func(d registry.Deleted) bool { return !used(d.Repository, d.Digest) }); err != nil {
				return nil, err
			}
		}
		options.Keep = s.images.Keep(s.Store.Snapshot())
	}
	answer.FreedBytes, err = s.registry.Collect(ctx, options)
	return answer, err
}

// dockerHub is the only registry with several well-known hosts.
const dockerHub = "docker.io"

// registryHost returns the host as image names contain it. field is the field of the request that has it.
func registryHost(field, from string) (string, error) {
	host := strings.ToLower(strings.TrimSuffix(from, "/"))
	switch strings.TrimPrefix(host, "https://") {
	case dockerHub, "index.docker.io", "registry-1.docker.io", "index.docker.io/v1":
		return dockerHub, nil
	}
	name, err := image.ParseName(host + "/image")
	if err != nil || name.Registry != host || name.Repository != "image" {
		return "", &spec.Error{Violations: []spec.Violation{{
			Field: field, Message: "is not the host of a registry: write it as in the name of an image, such as ghcr.io or registry.example:5000",
		}}}
	}
	if name.Local() {
		return "", core.Refuse(codes.InvalidArgument, "the cluster pulls from its own registry without a login; other programs log in to it with an API token as the password")
	}
	return host, nil
}

func (s *imageService) SetLogin(ctx context.Context, request *v1.SetLoginRequest) (*v1.Login, error) {
	host, err := registryHost("host", request.GetHost())
	if err != nil {
		return nil, err
	}
	snap, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		old := snap.LoginByName(host)
		login := &v1.Login{
			ApiVersion: spec.APIVersion, Kind: "Login",
			Metadata: &v1.Metadata{Uid: state.NewUID(), Name: host},
		}
		if old != nil {
			login = proto.CloneOf(old)
		}
		login.Spec = &v1.LoginSpec{Host: host, Username: request.GetUsername()}
		uid := login.GetMetadata().GetUid()
		sealed, err := s.sealer.Seal([]byte(request.GetPassword()), images.PasswordContext(uid))
		if err != nil {
			return err
		}
		password := &statev1.Password{Metadata: &v1.Metadata{Uid: uid}, Sealed: sealed}
		if old == nil {
			b.Create(login)
			b.Create(password)
		} else {
			password.Metadata = proto.CloneOf(snap.Password(uid).GetMetadata())
			b.Update(login, old.GetMetadata().GetVersion())
			b.Update(password, password.GetMetadata().GetVersion())
		}
		b.Create(s.Event(ctx, login, "LoggedIn", "images of "+host+" are pulled as "+request.GetUsername()))
		return nil
	})
	if err != nil {
		return nil, err
	}
	return snap.LoginByName(host), nil
}

func newLogins(s *Server) *collection[*v1.Login] {
	c := newCollection[*v1.Login](s, state.KindLogin)
	c.missing = func(_ *state.Snapshot, _, host string) error {
		return core.Refuse(codes.NotFound, "the cluster has no login to %s", host)
	}
	c.remove = func(ctx context.Context, tx *transaction, login *v1.Login) *v1.Login {
		uid, host := login.GetMetadata().GetUid(), login.GetMetadata().GetName()
		tx.batch.Delete(state.KindLogin, uid)
		tx.batch.Delete(state.KindPassword, uid)
		tx.batch.Create(s.Event(ctx, login, "LoggedOut", "images of "+host+" are pulled without a login"))
		return login
	}
	return c
}

func (s *imageService) GetLogin(ctx context.Context, request *v1.GetLoginRequest) (*v1.Login, error) {
	host, err := registryHost("name", request.GetName())
	if err != nil {
		return nil, err
	}
	return s.logins.read(ctx, "", host)
}

func (s *imageService) ListLogins(ctx context.Context, request *v1.ListLoginsRequest) (*v1.ListLoginsResponse, error) {
	items, next, err := s.logins.list(ctx, request.GetPage(), selection[*v1.Login]{})
	if err != nil {
		return nil, err
	}
	return &v1.ListLoginsResponse{Items: items, Next: next}, nil
}

func (s *imageService) DeleteLogin(ctx context.Context, request *v1.DeleteLoginRequest) (*v1.DeleteLoginResponse, error) {
	host, err := registryHost("name", request.GetName())
	if err != nil {
		return nil, err
	}
	if _, err := s.logins.delete(ctx, "", host, 0); err != nil {
		return nil, err
	}
	return &v1.DeleteLoginResponse{}, nil
}
