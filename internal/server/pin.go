package server

import (
	"context"
	"errors"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
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
func (s *Server) nameImage(ctx context.Context, from string, r receipt) (n namedImage, err error) {
	n.from = from
	if n.name, err = parseImage("spec.image", from); err != nil {
		return n, err
	}
	if n.name.Local() {
		if !tagsTaken(s.store.Snapshot()) {
			_, err = s.readTags(ctx)
		}
		return n, err
	}
	if done, err := r.find(s.store.Snapshot()); done != nil || err != nil {
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
		p.tag = tagFor(snap, n.name.Repository, digest)
	} else {
		p.tag = snap.Tag(n.name.Repository, digest)
		digest = p.tag.GetDigest()
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

// relyOn lets a transaction happen only while the tag still says so.
func (p pinned) relyOn(b *state.Batch) {
	if p.tag != nil {
		b.Check(state.KindTag, p.tag.GetMetadata().GetUid(), p.tag.GetMetadata().GetVersion())
	}
}
