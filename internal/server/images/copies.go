package images

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// Tagged returns the images that have a tag.
func (s *Images) Tagged(snap *state.Snapshot) []*v1.ImageCopy {
	var all []*v1.ImageCopy
	for t := range snap.Tags() {
		if repository, tag := TagName(t); t.GetDigest() != "" {
			all = append(all, &v1.ImageCopy{Repository: repository, Tag: tag, Digest: t.GetDigest()})
		}
	}
	return all
}

// Untagged returns the images that are kept without a tag: those of revisions, because
// their replicas may have to start elsewhere or a rollback may need them, and those that
// were deleted and can still be restored.
func (s *Images) Untagged(snap *state.Snapshot) []*v1.ImageCopy {
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

// FollowTags sets the tags of this server's registry to those of the state.
func (s *Images) FollowTags(ctx context.Context) {
	have, err := s.registry.List(ctx)
	if err != nil && ctx.Err() == nil {
		s.Logger.WarnContext(ctx, "the tags of the registry cannot be listed", "error", err)
	}
	for _, repository := range have {
		for _, tag := range repository.Tags {
			s.SettleTag(ctx, repository.Name, tag, false)
		}
	}
	for _, image := range s.Tagged(s.Store.Snapshot()) {
		s.SettleTag(ctx, image.GetRepository(), image.GetTag(), false)
	}
}

// Have copies an image from another server unless it is here.
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

// CopiesAt returns the tagged images that another server has.
func (s *Images) CopiesAt(ctx context.Context, server string) ([]*v1.ImageCopy, error) {
	conn, err := s.peers.Ready(ctx, server)
	if err != nil {
		return nil, err
	}
	answer, err := v1.NewPeerServiceClient(conn).ListCopies(ctx, &v1.ListCopiesRequest{})
	return answer.GetItems(), err
}
