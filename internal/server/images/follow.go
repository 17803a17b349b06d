package images

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// This file brings the registries of all servers to what the state says.

// mirrorPause is how often the leader looks for servers that lack an image.
const mirrorPause = 15 * time.Second

// MirrorImages lets every server have what the tags stand for and what revisions
// are of, and no other tag, this one first, until ctx ends. It runs where the
// leader is.
func (s *Images) MirrorImages(ctx context.Context) error {
	ticker := time.NewTicker(mirrorPause)
	defer ticker.Stop()
	for {
		s.MirrorOnce(ctx)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

func (s *Images) MirrorOnce(ctx context.Context) {
	err := s.takeTags(ctx)
	s.note(ctx, "the tags of images of older servers could not be taken over; trying again", "", nil, err)
	if err != nil {
		return // what no server has told of yet must not be dropped
	}
	err = s.ForgetDeleted(ctx, func(registry.Deleted) bool { return false })
	s.note(ctx, "deleted images could not be forgotten; trying again", "", nil, err)
	s.followHere(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	for _, other := range s.Consensus.Servers() {
		if other.ID != s.UID {
			all.Go(func() { s.followThere(ctx, other.ID) })
		}
	}
}

// note logs what failed once, not in every round.
func (s *Images) note(ctx context.Context, message, server string, image *v1.ImageCopy, err error) {
	s.mirrors.mu.Lock()
	defer s.mirrors.mu.Unlock()
	key := message + " " + server + " " + image.GetRepository() + ":" + image.GetTag()
	if err == nil || ctx.Err() != nil {
		delete(s.mirrors.failing, key)
		return
	}
	if s.mirrors.failing == nil {
		s.mirrors.failing = map[string]string{}
	}
	if s.mirrors.failing[key] != err.Error() {
		s.mirrors.failing[key] = err.Error()
		s.Logger.WarnContext(ctx, message, "server", server, "image", image.GetRepository(), "tag", image.GetTag(), "error", err)
	}
}

// copiesWanted are the images that have a tag.
func copiesWanted(snap *state.Snapshot) []*v1.ImageCopy {
	var all []*v1.ImageCopy
	for t := range snap.Tags() {
		if repository, tag := TagName(t); t.GetDigest() != "" {
			all = append(all, &v1.ImageCopy{Repository: repository, Tag: tag, Digest: t.GetDigest()})
		}
	}
	return all
}

// untaggedCopies are the images that no tag has to stand for: those that revisions
// are of, because what runs them may have to be started elsewhere, or be gone back
// to, and those that were deleted and can still be had back.
func (s *Images) untaggedCopies(snap *state.Snapshot) []*v1.ImageCopy {
	seen := map[string]bool{}
	var all []*v1.ImageCopy
	for _, d := range s.DeletedIn(snap) {
		if of := d.Repository + "@" + d.Digest; !seen[of] {
			seen[of] = true
			all = append(all, &v1.ImageCopy{Repository: d.Repository, Digest: d.Digest})
		}
	}
	for w := range snap.Workloads("", "") {
		for r := range snap.RevisionsOf(w.GetMetadata().GetUid()) {
			of := r.GetSpec().GetImage()
			if seen[of] {
				continue
			}
			seen[of] = true
			if name, err := image.ParseName(of); err == nil && name.Local() && name.Digest != "" {
				all = append(all, &v1.ImageCopy{Repository: name.Repository, Digest: name.Digest})
			}
		}
	}
	return all
}

// followHere lets this server's registry have what the tags stand for and what is
// needed without one. What only a server has that cannot be reached now comes in a
// later round, or when somebody asks for it.
func (s *Images) followHere(ctx context.Context) {
	s.followTags(ctx)
	snap := s.Store.Snapshot()
	for _, image := range append(copiesWanted(snap), s.untaggedCopies(snap)...) {
		if ctx.Err() != nil {
			return
		}
		err := s.Have(ctx, image.GetRepository(), image.GetDigest())
		s.note(ctx, "an image could not be had from any other server; trying again", "", image, err)
	}
}

// followTags lets the tags of this server's registry be as the state has them.
func (s *Images) followTags(ctx context.Context) {
	have, err := s.registry.List(ctx)
	if err != nil && ctx.Err() == nil {
		s.Logger.WarnContext(ctx, "the tags of the registry cannot be listed", "error", err)
	}
	for _, repository := range have {
		for _, tag := range repository.Tags {
			s.SettleTag(ctx, repository.Name, tag, false)
		}
	}
	for _, image := range copiesWanted(s.Store.Snapshot()) {
		s.SettleTag(ctx, image.GetRepository(), image.GetTag(), false)
	}
}

// Have gets an image from another server unless it is here.
func (s *Images) Have(ctx context.Context, repository, digest string) error {
	_, missing := s.registry.Digest(ctx, repository, digest)
	if !errors.Is(missing, registry.ErrNotFound) {
		return missing
	}
	var failed []error
	for _, other := range s.Consensus.Servers() {
		if other.ID == s.UID {
			continue
		}
		_, err := s.peers.Ready(ctx, other.ID)
		if err == nil {
			err = s.CopyFrom(ctx, other.ID, &v1.ImageCopy{Repository: repository, Digest: digest})
		}
		if err == nil {
			return nil
		}
		if answered, ok := errors.AsType[*transport.Error](err); !ok || answered.StatusCode != http.StatusNotFound {
			failed = append(failed, err)
		}
	}
	if len(failed) == 0 {
		return missing
	}
	return core.Refuse(codes.Unavailable, "image %s@%s is on no server that can be reached now: try again: %s", repository, digest, errors.Join(failed...))
}

// followThere brings another server what it lacks and takes from it what was
// deleted. An image that fails, as on a full disk, holds up no other.
func (s *Images) followThere(ctx context.Context, server string) {
	have, err := s.copiesAt(ctx, server)
	if err != nil {
		return // it is told when it is back
	}
	there := map[string]string{}
	for _, image := range have {
		there[state.TagUID(image.GetRepository(), image.GetTag())] = image.GetDigest()
	}
	// It got tags only after they had been agreed on, so this has them.
	snap := s.Store.Snapshot()
	for _, image := range copiesWanted(snap) {
		if ctx.Err() != nil {
			return
		}
		if there[state.TagUID(image.GetRepository(), image.GetTag())] != image.GetDigest() {
			s.note(ctx, "an image could not be copied to a server; trying again", server, image, s.copyTo(server, image))
		}
	}
	s.bringUntagged(ctx, server, s.untaggedCopies(snap))
	for _, image := range have {
		if snap.Tag(image.GetRepository(), image.GetTag()).GetDigest() == "" {
			err := s.dropAt(ctx, server, image.GetRepository(), image.GetTag(), false)
			s.note(ctx, "a server still has an image that was deleted; trying again", server, image, err)
		}
	}
}

// bringUntagged brings another server images without tags. It does not tell of
// those, but says so if it has one already: each is offered once.
func (s *Images) bringUntagged(ctx context.Context, server string, wanted []*v1.ImageCopy) {
	had := s.mirrors.offered(server)
	has := map[string]bool{}
	for _, image := range wanted {
		if ctx.Err() != nil {
			return
		}
		name := image.GetRepository() + "@" + image.GetDigest()
		if !had[name] {
			err := s.copyTo(server, image)
			s.note(ctx, "an image that is needed without a tag could not be copied to a server; trying again", server, image, err)
			if err != nil {
				continue
			}
		}
		has[name] = true
	}
	s.mirrors.offer(server, has)
}

// copiesAt are the tagged images that another server has.
func (s *Images) copiesAt(ctx context.Context, server string) ([]*v1.ImageCopy, error) {
	conn, err := s.peers.Ready(ctx, server)
	if err != nil {
		return nil, err
	}
	answer, err := v1.NewPeerServiceClient(conn).ListCopies(ctx, &v1.ListCopiesRequest{})
	return answer.GetItems(), err
}
