package registry

import (
	"context"
	"fmt"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// CheckTag returns an error unless both can be names in a registry.
func CheckTag(name, tag string) error {
	named, err := reference.WithName(name)
	if err == nil {
		_, err = reference.WithTag(named, tag)
	}
	return err
}

// Tagged returns the digest that a tag stands for here, whether its image is here or not.
func (r *Registry) Tagged(ctx context.Context, name, tag string) (string, error) {
	ctx = r.log.context(ctx)
	repo, named, err := r.repository(ctx, name)
	if err != nil {
		return "", err
	}
	d, err := digestOf(ctx, repo, named, tag)
	if err != nil {
		return "", fmt.Errorf("image %s, tag %s: %w", name, tag, err)
	}
	return d.String(), nil
}

// SetTag sets a tag to an image. If the image was deleted under the tag, it no longer
// counts as deleted.
func (r *Registry) SetTag(ctx context.Context, name, tag, dgst string) error {
	ctx = r.log.context(ctx)
	if err := CheckTag(name, tag); err != nil {
		return err
	}
	d, err := digest.Parse(dgst)
	if err != nil {
		return err
	}
	r.pushes.gate.RLock()
	defer r.pushes.gate.RUnlock()
	defer r.digests.forget()
	repo, _, err := r.repository(ctx, name)
	if err != nil {
		return err
	}
	if err := repo.Tags(ctx).Tag(ctx, tag, ocispec.Descriptor{Digest: d}); err != nil {
		return fmt.Errorf("let tag %s of %s stand for %s: %w", tag, name, d, err)
	}
	return r.unearth(Deleted{Repository: name, Tag: tag, Digest: d.String()})
}

// Forget lets the next Collect remove a deleted image before its time.
func (r *Registry) Forget(d Deleted) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	r.release(imageRef{d.Repository, d.Digest}, true)
	return r.unearth(d)
}

// Reclaim returns once no collection treats an image as deleted that is about to get a tag.
// The image must be there.
func (r *Registry) Reclaim(ctx context.Context, name, dgst string) error {
	r.changing.Lock()
	delete(r.released, imageRef{name, dgst})
	r.changing.Unlock()
	_, err := r.Digest(ctx, name, dgst)
	return err
}
