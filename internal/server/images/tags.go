package images

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The replicated state holds the digests of tags, and the deleted images that can be
// restored, so that no change of the leader can undo an acknowledged write. The registry of
// a server has tags too, for its collection and its lists; they follow the state.

// ReadTags returns a state that has every tag.
func (s *Images) ReadTags(ctx context.Context) (*state.Snapshot, error) {
	snap, err := s.Consensus.Read(ctx)
	if err != nil || tagsImported(snap) || consensus.IsStale(ctx) {
		return snap, err
	}
	if err := s.ImportTags(ctx); err != nil {
		return nil, err
	}
	return s.Consensus.Read(ctx)
}

// tagsImported reports whether the tags were imported that older releases had only in their
// registries. Until then a deleted tag stays in the state, so that it is not imported
// later.
func tagsImported(snap *state.Snapshot) bool { return snap.Tag("", "") != nil }

// ImportTags imports the tags of registries that the state does not know. A majority of the
// servers has everything that was acknowledged, so it asks that many. If they differ, this
// server's own tag wins.
func (s *Images) ImportTags(ctx context.Context) error {
	s.mirrors.taking.Lock()
	defer s.mirrors.taking.Unlock()
	if tagsImported(s.Store.Snapshot()) {
		return nil
	}
	found := map[string]*statev1.Tag{}
	if err := s.ownTags(ctx, found); err != nil {
		return err
	}
	voters, heard := 0, 0
	for _, server := range s.Consensus.Servers() {
		if server.Voter {
			voters++
		}
		if server.ID == s.UID {
			heard++
			continue
		}
		items, err := s.CopiesAt(ctx, server.ID)
		if err != nil {
			continue
		}
		if server.Voter {
			heard++
		}
		for _, i := range items {
			addTag(found, i, s.Now())
		}
	}
	if heard <= voters/2 {
		return core.Refuse(codes.Unavailable, "the tags of images are unknown until more servers are reached: try again")
	}
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		if tagsImported(snap) {
			return nil
		}
		for uid, t := range found {
			repository, tag := splitTag(uid)
			if snap.Tag(repository, tag) == nil {
				b.Create(proto.CloneOf(t))
			}
		}
		b.Create(state.ImportedTags())
		return nil
	})
	return err
}

// ownTags returns the tags of this server's registry, and its deleted images.
func (s *Images) ownTags(ctx context.Context, found map[string]*statev1.Tag) error {
	own, err := s.copies(ctx)
	if err != nil {
		return err
	}
	for _, i := range own {
		at := s.Now()
		if d, err := s.registry.Resolve(ctx, i.GetRepository(), i.GetTag()); err == nil {
			at = d.PushTime
		}
		addTag(found, i, at)
	}
	deleted, err := s.registry.Deleted()
	for _, d := range deleted {
		if !s.Now().Before(d.ExpireTime) {
			continue
		}
		uid := state.TagUID(d.Repository, d.Tag)
		if found[uid] == nil {
			found[uid] = &statev1.Tag{Metadata: &v1.Metadata{Uid: uid}}
		}
		found[uid].Deleted = append(found[uid].Deleted, &statev1.DeletedImage{
			Digest: d.Digest, DeleteTime: timestamppb.New(d.DeleteTime), ExpireTime: timestamppb.New(d.ExpireTime),
		})
	}
	return err
}

func addTag(found map[string]*statev1.Tag, i *v1.ImageCopy, pushed time.Time) {
	uid := state.TagUID(i.GetRepository(), i.GetTag())
	if found[uid] == nil {
		found[uid] = &statev1.Tag{Metadata: &v1.Metadata{Uid: uid}, Digest: i.GetDigest(), PushTime: timestamppb.New(pushed)}
	}
}

func splitTag(uid string) (repository, tag string) {
	i := strings.LastIndexByte(uid, ':')
	return uid[:max(i, 0)], uid[i+1:]
}

func TagName(t *statev1.Tag) (repository, tag string) { return splitTag(t.GetMetadata().GetUid()) }

// DigestIn returns the digest of a tag or digest, or an empty string.
func DigestIn(snap *state.Snapshot, repository, ref string) string {
	if IsDigest(ref) {
		return ref
	}
	return snap.Tag(repository, ref).GetDigest()
}

// IsDigest distinguishes digests from tags, which cannot contain a colon.
func IsDigest(ref string) bool { return strings.Contains(ref, ":") }

// SetTag sets a tag to an image, and returns when that is committed.
func (s *Images) SetTag(ctx context.Context, repository, tag, digest string) error {
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		made := s.TagOf(snap, repository, tag)
		made.Digest, made.PushTime = digest, timestamppb.New(s.Now())
		s.PutTag(snap, b, made)
		return nil
	})
	if err != nil {
		return err
	}
	s.SettleTag(ctx, repository, tag, false)
	return nil
}

// TagOf returns a tag that can be changed, without images that can no longer be restored.
func (s *Images) TagOf(snap *state.Snapshot, repository, tag string) *statev1.Tag {
	have := snap.Tag(repository, tag)
	if have == nil {
		return &statev1.Tag{Metadata: &v1.Metadata{Uid: state.TagUID(repository, tag)}}
	}
	made := proto.CloneOf(have)
	made.Deleted = slices.DeleteFunc(made.Deleted, func(d *statev1.DeletedImage) bool { return !s.Now().Before(d.GetExpireTime().AsTime()) })
	return made
}

// PutTag replaces a tag, or deletes one that is empty. The empty tag of a repository stays
// once it exists: its version tells transactions that an image without a tag was deleted.
func (s *Images) PutTag(snap *state.Snapshot, b *state.Batch, t *statev1.Tag) {
	repository, tag := TagName(t)
	have := snap.Tag(repository, tag)
	switch forget := tag != "" && t.GetDigest() == "" && len(t.GetDeleted()) == 0 && tagsImported(snap); {
	case have == nil && forget:
	case have == nil:
		b.Create(t)
	case forget:
		b.DeleteVersion(state.KindTag, have.GetMetadata().GetUid(), have.GetMetadata().GetVersion())
	default:
		b.Update(t, have.GetMetadata().GetVersion())
	}
}

// DeleteTags removes the tags that a tag or digest names, and returns the deleted images
// when that is committed. With now, they cannot be restored, but an image that a workload
// has begun to use meanwhile stays, unless force is set.
func (s *Images) DeleteTags(ctx context.Context, repository, ref string, now, force bool) ([]registry.Deleted, error) {
	var gone []registry.Deleted
	agreed, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		gone = nil
		at := s.Now().UTC()
		expire := at
		if !now {
			expire = at.Add(spec.RetentionOf(snap.Cluster().GetSpec()).Images)
		}
		for _, tag := range tagsNamed(snap, repository, ref) {
			made := s.TagOf(snap, repository, tag)
			one := registry.Deleted{Repository: repository, Tag: tag, Digest: DigestIn(snap, repository, ref), DeleteTime: at, ExpireTime: expire}
			made.Deleted = slices.DeleteFunc(made.Deleted, func(d *statev1.DeletedImage) bool { return d.GetDigest() == one.Digest })
			if !now {
				made.Deleted = slices.Insert(made.Deleted, 0, &statev1.DeletedImage{
					Digest: one.Digest, PushTime: made.GetPushTime(), DeleteTime: timestamppb.New(at), ExpireTime: timestamppb.New(expire),
				})
			}
			made.Digest, made.PushTime = "", nil
			s.PutTag(snap, b, made)
			gone = append(gone, one)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	uses := UsesOf(agreed) // from here on no workload can begin to use it: the tags have changed
	for _, d := range gone {
		now := now && (force || len(uses.Of(repository, "", d.Digest)) == 0)
		if d.Tag != "" {
			s.SettleTag(ctx, repository, d.Tag, now)
		} else if _, err := s.registry.Delete(ctx, repository, d.Digest, now); err != nil && !errors.Is(err, registry.ErrNotFound) {
			s.Logger.WarnContext(ctx, "a deleted image could not be removed here", "image", repository, "error", err)
		}
		s.dropEverywhere(ctx, repository, cmp.Or(d.Tag, d.Digest), now)
		if now && TagFor(s.Store.Snapshot(), repository, d.Digest) != nil {
			s.reclaimEverywhere(ctx, &v1.ImageCopy{Repository: repository, Digest: d.Digest})
		}
	}
	return gone, nil
}

// tagsNamed returns the tags that a tag or digest names; an image without a tag has the
// empty one.
func tagsNamed(snap *state.Snapshot, repository, ref string) []string {
	if !IsDigest(ref) {
		if snap.Tag(repository, ref).GetDigest() == "" {
			return nil
		}
		return []string{ref}
	}
	var tags []string
	for t := range snap.TagsOf(repository) {
		if t.GetDigest() == ref {
			_, tag := TagName(t)
			tags = append(tags, tag)
		}
	}
	if len(tags) == 0 {
		tags = []string{""}
	}
	return tags
}

// SettleTag sets a tag in this server's registry to that of the state. No caller depends on
// it, and the next round of mirroring tries again, so an error is only logged.
func (s *Images) SettleTag(ctx context.Context, repository, tag string, now bool) {
	err := s.followTag(ctx, repository, tag, now)
	s.failures.Note(ctx, s.Logger, "a tag of the registry does not follow; trying again", err, "image", repository, "tag", tag)
}

func (s *Images) followTag(ctx context.Context, repository, tag string, now bool) error {
	s.mirrors.settling.Lock()
	defer s.mirrors.settling.Unlock()
	wanted := s.Store.Snapshot().Tag(repository, tag).GetDigest()
	have, err := s.registry.Tagged(ctx, repository, tag)
	switch {
	case err != nil && !errors.Is(err, registry.ErrNotFound):
		return err
	case have == wanted:
		return nil
	case wanted != "":
		return s.registry.SetTag(ctx, repository, tag, wanted)
	}
	_, err = s.registry.Delete(ctx, repository, tag, now)
	return err
}

// DeletedIn returns the images that can be restored, the last deleted first.
func (s *Images) DeletedIn(snap *state.Snapshot) []registry.Deleted {
	var all []registry.Deleted
	for t := range snap.Tags() {
		repository, tag := TagName(t)
		for _, d := range t.GetDeleted() {
			if expire := d.GetExpireTime().AsTime(); s.Now().Before(expire) {
				all = append(all, registry.Deleted{
					Repository: repository, Tag: tag, Digest: d.GetDigest(), DeleteTime: d.GetDeleteTime().AsTime(), ExpireTime: expire,
				})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b registry.Deleted) int { return b.DeleteTime.Compare(a.DeleteTime) })
	return all
}

// Why RestoreTag restores nothing, beside registry.ErrNotFound.
var (
	ErrNotDeleted = errors.New("the image is not deleted")
	ErrTaken      = errors.New("the tag stands for another image by now")
)

// RestoreTag restores the image that was last deleted under a tag or digest.
func (s *Images) RestoreTag(ctx context.Context, repository, ref string) (registry.Deleted, error) {
	var back registry.Deleted
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		all := s.DeletedIn(snap)
		i := slices.IndexFunc(all, func(d registry.Deleted) bool { return deletedAs(d, repository, ref) })
		if i < 0 {
			if IsDigest(ref) || DigestIn(snap, repository, ref) == "" {
				return registry.ErrNotFound
			}
			return ErrNotDeleted
		}
		back = all[i]
		made := s.TagOf(snap, repository, back.Tag)
		if have := made.GetDigest(); have != "" && have != back.Digest {
			return ErrTaken
		}
		s.GiveBack(made, back)
		s.PutTag(snap, b, made)
		return nil
	})
	if err == nil && back.Tag != "" {
		s.SettleTag(ctx, repository, back.Tag, false)
	}
	return back, err
}

func deletedAs(d registry.Deleted, repository, ref string) bool {
	return d.Repository == repository && (d.Tag == ref || d.Digest == ref)
}

// GiveBack restores a deleted image under its tag, unless the tag has another image by now.
func (s *Images) GiveBack(t *statev1.Tag, back registry.Deleted) {
	was := takeDeleted(t, back.Digest)
	if back.Tag == "" || t.GetDigest() != "" {
		return
	}
	t.Digest, t.PushTime = back.Digest, was.GetPushTime()
	if t.PushTime == nil {
		t.PushTime = timestamppb.New(s.Now())
	}
}

func takeDeleted(t *statev1.Tag, digest string) *statev1.DeletedImage {
	i := slices.IndexFunc(t.Deleted, func(d *statev1.DeletedImage) bool { return d.GetDigest() == digest })
	if i < 0 {
		return nil
	}
	was := t.Deleted[i]
	t.Deleted = slices.Delete(t.Deleted, i, i+1)
	return was
}

// ForgetDeleted forgets the deleted images for which over returns true. They can no longer
// be restored.
func (s *Images) ForgetDeleted(ctx context.Context, over func(registry.Deleted) bool) error {
	_, err := s.Propose(ctx, func(snap *state.Snapshot, b *state.Batch) error {
		for t := range snap.Tags() {
			if len(t.GetDeleted()) == 0 {
				continue
			}
			repository, tag := TagName(t)
			made := s.TagOf(snap, repository, tag)
			made.Deleted = slices.DeleteFunc(made.Deleted, func(d *statev1.DeletedImage) bool {
				return over(registry.Deleted{Repository: repository, Tag: tag, Digest: d.GetDigest()})
			})
			if len(made.GetDeleted()) != len(t.GetDeleted()) {
				s.PutTag(snap, b, made)
			}
		}
		return nil
	})
	return err
}
