package registry

import (
	"context"
	"fmt"
	"sync"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// maxOffers bounds the memory that remembered platforms take.
const maxOffers = 10_000

// offers remembers what images are for, by digest. What a digest stands for never
// changes, so that nothing has to be forgotten.
type offers struct {
	mu    sync.Mutex
	known map[imageRef][]string
}

func (o *offers) get(r imageRef) (platforms []string, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	platforms, ok = o.known[r]
	return platforms, ok
}

func (o *offers) put(r imageRef, platforms []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known == nil || len(o.known) == maxOffers {
		o.known = map[imageRef][]string{}
	}
	o.known[r] = platforms
}

// Platforms are what the image of a digest is for, as linux/amd64 or linux/arm/v7;
// none if that cannot be said of all that it holds. Like Digest it is asked by
// every change of a workload.
func (r *Registry) Platforms(ctx context.Context, name, dgst string) ([]string, error) {
	ref := imageRef{name, dgst}
	if known, ok := r.offers.get(ref); ok {
		return known, nil
	}
	ctx = r.log.context(ctx)
	platforms, err := r.platforms(ctx, name, dgst)
	if err != nil {
		return nil, fmt.Errorf("image %s, reference %s: %w", name, dgst, err)
	}
	r.offers.put(ref, platforms)
	return platforms, nil
}

func (r *Registry) platforms(ctx context.Context, name, ref string) ([]string, error) {
	named, err := reference.WithName(name)
	if err != nil {
		return nil, err
	}
	dgst, err := digest.Parse(ref)
	if err != nil {
		return nil, err
	}
	repo, err := r.images.Repository(ctx, named)
	if err != nil {
		return nil, err
	}
	manifests, err := repo.Manifests(ctx)
	if err != nil {
		return nil, err
	}
	_, _, body, err := readManifest(ctx, manifests, dgst)
	if err != nil {
		return nil, err
	}
	for _, m := range body.Manifests {
		if m.Platform == nil {
			return nil, nil // only the one who pulls it will see
		}
	}
	return body.platforms(ctx, repo)
}
