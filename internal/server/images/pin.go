package images

import (
	"context"
	"errors"
	"slices"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/state"
)

// A revision runs an image by its digest, so that every replica runs the same. The state
// maps names in the cluster's own registry to digests. A name is resolved in the very
// snapshot that a workload is written on, and the transaction checks that the tag is still
// the same: one commit covers both the workload and its image.

// Named is the image of a workload that is about to be written.
type Named struct {
	From string
	Name image.Name
	// LeftOut is whether a registry outside the cluster was not asked, because the caller may not have it asked.
	LeftOut bool
	// foreign is the image in a registry outside the cluster.
	foreign Pinned
}

// Name does the slow part before a transaction is built: it asks a registry outside the
// cluster for the digest, unless the call is a repeated one, whose answer no longer depends
// on the image. If this server cannot reach that registry, the name is kept and the node
// resolves it.
func (s *Images) Name(ctx context.Context, from string, r core.Receipt) (n Named, err error) {
	n.From = from
	if n.Name, err = ParseName("spec.image", from); err != nil {
		return n, err
	}
	if n.Name.Local() {
		if !tagsImported(s.Store.Snapshot()) {
			_, err = s.ReadTags(ctx)
		}
		return n, err
	}
	if done, err := r.Find(s.Store.Snapshot()); done != nil || err != nil {
		return n, err
	}
	if n.LeftOut = !looksUp(ctx); n.LeftOut {
		n.foreign = Pinned{Image: n.Name.String()}
		return n, nil
	}
	n.foreign, err = s.pinForeign(ctx, n.Name)
	return n, err
}

// Pin resolves an image in a state.
func (s *Images) Pin(ctx context.Context, snap *state.Snapshot, n Named) (Pinned, error) {
	if n.foreign.Image != "" {
		return n.foreign, nil
	}
	var p Pinned
	digest := n.Name.Reference()
	if IsDigest(digest) {
		p.Keepers = KeepersOf(snap, n.Name.Repository, digest)
	} else {
		p.Keepers = []TagVersion{versionOf(snap, n.Name.Repository, digest)}
		digest = snap.Tag(n.Name.Repository, digest).GetDigest()
	}
	if digest != "" {
		_, err := s.registry.Digest(ctx, n.Name.Repository, digest) // a collection spares images that were just looked up
		switch missing := errors.Is(err, registry.ErrNotFound); {
		case missing && !s.Keep(snap)(n.Name.Repository, digest):
			digest = ""
		case err != nil && !missing:
			return p, err
		}
	}
	if digest == "" {
		return p, s.unpushedImage(snap, n.From, n.Name)
	}
	p.Image, p.Platforms = n.Name.Pinned(digest), s.platforms(ctx, n.Name.Repository, digest)
	return p, nil
}

// TagFor returns a tag that stands for an image, which keeps the image from being
// collected; nil if there is none.
func TagFor(snap *state.Snapshot, repository, digest string) *statev1.Tag {
	for t := range snap.TagsOf(repository) {
		if t.GetDigest() == digest {
			return t
		}
	}
	return nil
}

// TagVersion is a tag with its version in a state; 0 if it does not exist.
type TagVersion struct {
	UID     string
	version uint64
}

func versionOf(snap *state.Snapshot, repository, tag string) TagVersion {
	return TagVersion{state.TagUID(repository, tag), snap.Tag(repository, tag).GetMetadata().GetVersion()}
}

// KeepersOf returns the tags that keep an image: at least one of them changes before the image is removed for good. If
// no tag stands for the image, they are the empty tag, which every deletion of an image without a tag changes, and the
// tags that it was deleted from and can be restored to.
func KeepersOf(snap *state.Snapshot, repository, digest string) []TagVersion {
	if t := TagFor(snap, repository, digest); t != nil {
		return []TagVersion{{t.GetMetadata().GetUid(), t.GetMetadata().GetVersion()}}
	}
	keepers := []TagVersion{versionOf(snap, repository, "")}
	for t := range snap.TagsOf(repository) {
		_, tag := TagName(t)
		isDeleted := slices.ContainsFunc(t.GetDeleted(), func(d *statev1.DeletedImage) bool { return d.GetDigest() == digest })
		if tag != "" && isDeleted {
			keepers = append(keepers, versionOf(snap, repository, tag))
		}
	}
	return keepers
}

// RelyOn makes a transaction fail if the image has changed or been deleted since it was
// resolved.
func (p Pinned) RelyOn(b *state.Batch) {
	for _, k := range p.Keepers {
		b.Check(state.KindTag, k.UID, k.version)
	}
}
