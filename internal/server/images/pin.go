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

// A revision runs an image by its digest, so that every replica runs the same.
// What a name in the cluster's own registry stands for is in the state. It is
// looked up in the very snapshot that a workload is written on, and the
// transaction checks that it is still so: agreeing on the workload agrees on
// that too, and nothing has to be agreed on before.

// Named is the image of a workload that is about to be written.
type Named struct {
	From string
	Name image.Name
	// foreign is what it stands for in a registry of others.
	foreign Pinned
}

// Name does what takes a while, before a transaction is built: it asks a
// registry of others what the name stands for, unless the call was made before;
// what a repeated one is answered does not depend on the image any more. Where
// that registry cannot be reached from here, the name is kept and the node
// resolves it.
func (s *Images) Name(ctx context.Context, from string, r core.Receipt) (n Named, err error) {
	n.From = from
	if n.Name, err = ParseName("spec.image", from); err != nil {
		return n, err
	}
	if n.Name.Local() {
		if !tagsTaken(s.Store.Snapshot()) {
			_, err = s.ReadTags(ctx)
		}
		return n, err
	}
	if done, err := r.Find(s.Store.Snapshot()); done != nil || err != nil {
		return n, err
	}
	n.foreign, err = s.pinForeign(ctx, n.Name)
	return n, err
}

// Pin says what an image stands for in a state.
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
		_, err := s.registry.Digest(ctx, n.Name.Repository, digest) // who has asked is waited for by a collection
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

// TagFor is a tag that stands for an image, which keeps the image from being
// collected; nil if there is none.
func TagFor(snap *state.Snapshot, repository, digest string) *statev1.Tag {
	for t := range snap.TagsOf(repository) {
		if t.GetDigest() == digest {
			return t
		}
	}
	return nil
}

// TagVersion is a tag as it is in a state; its version is 0 if it is not there.
type TagVersion struct {
	UID     string
	version uint64
}

func versionOf(snap *state.Snapshot, repository, tag string) TagVersion {
	return TagVersion{state.TagUID(repository, tag), snap.Tag(repository, tag).GetMetadata().GetVersion()}
}

// KeepersOf are the tags of which at least one changes before an image goes for good: one
// that stands for it or, if none does, the empty one, which every deletion of an image
// without a tag changes, and those from which it was deleted and can be restored.
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

// RelyOn lets a transaction happen only while the image is kept as it was looked up.
func (p Pinned) RelyOn(b *state.Batch) {
	for _, k := range p.Keepers {
		b.Check(state.KindTag, k.UID, k.version)
	}
}
