package server

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

// namedImage is the image of a workload that is about to be written.
type namedImage struct {
	from string
	name image.Name
	// foreign is what it stands for in a registry of others.
	foreign pinned
}

// nameImage does what takes a while, before a transaction is built: it asks a
// registry of others what the name stands for, unless the call was made before;
// what a repeated one is answered does not depend on the image any more. Where
// that registry cannot be reached from here, the name is kept and the node
// resolves it.
func (s *Server) nameImage(ctx context.Context, from string, r core.Receipt) (n namedImage, err error) {
	n.from = from
	if n.name, err = parseImage("spec.image", from); err != nil {
		return n, err
	}
	if n.name.Local() {
		if !tagsTaken(s.Store.Snapshot()) {
			_, err = s.readTags(ctx)
		}
		return n, err
	}
	if done, err := r.Find(s.Store.Snapshot()); done != nil || err != nil {
		return n, err
	}
	n.foreign, err = s.pinForeign(ctx, n.name)
	return n, err
}

// pinIn says what an image stands for in a state.
func (s *Server) pinIn(ctx context.Context, snap *state.Snapshot, n namedImage) (pinned, error) {
	if n.foreign.image != "" {
		return n.foreign, nil
	}
	var p pinned
	digest := n.name.Reference()
	if isDigest(digest) {
		p.keepers = keepersOf(snap, n.name.Repository, digest)
	} else {
		p.keepers = []tagVersion{versionOf(snap, n.name.Repository, digest)}
		digest = snap.Tag(n.name.Repository, digest).GetDigest()
	}
	if digest != "" {
		_, err := s.registry.Digest(ctx, n.name.Repository, digest) // who has asked is waited for by a collection
		switch missing := errors.Is(err, registry.ErrNotFound); {
		case missing && !s.keepImages(snap)(n.name.Repository, digest):
			digest = ""
		case err != nil && !missing:
			return p, err
		}
	}
	if digest == "" {
		return p, s.unpushedImage(snap, n.from, n.name)
	}
	p.image, p.platforms = n.name.Pinned(digest), s.platforms(ctx, n.name.Repository, digest)
	return p, nil
}

// tagFor is a tag that stands for an image, which keeps the image from being
// collected; nil if there is none.
func tagFor(snap *state.Snapshot, repository, digest string) *statev1.Tag {
	for t := range snap.TagsOf(repository) {
		if t.GetDigest() == digest {
			return t
		}
	}
	return nil
}

// tagVersion is a tag as it is in a state; its version is 0 if it is not there.
type tagVersion struct {
	uid     string
	version uint64
}

func versionOf(snap *state.Snapshot, repository, tag string) tagVersion {
	return tagVersion{state.TagUID(repository, tag), snap.Tag(repository, tag).GetMetadata().GetVersion()}
}

// keepersOf are the tags of which at least one changes before an image goes for good: one
// that stands for it or, if none does, the empty one, which every deletion of an image
// without a tag changes, and those from which it was deleted and can be had back.
func keepersOf(snap *state.Snapshot, repository, digest string) []tagVersion {
	if t := tagFor(snap, repository, digest); t != nil {
		return []tagVersion{{t.GetMetadata().GetUid(), t.GetMetadata().GetVersion()}}
	}
	keepers := []tagVersion{versionOf(snap, repository, "")}
	for t := range snap.TagsOf(repository) {
		_, tag := tagName(t)
		isDeleted := slices.ContainsFunc(t.GetDeleted(), func(d *statev1.DeletedImage) bool { return d.GetDigest() == digest })
		if tag != "" && isDeleted {
			keepers = append(keepers, versionOf(snap, repository, tag))
		}
	}
	return keepers
}

// relyOn lets a transaction happen only while the image is kept as it was looked up.
func (p pinned) relyOn(b *state.Batch) {
	for _, k := range p.keepers {
		b.Check(state.KindTag, k.uid, k.version)
	}
}
