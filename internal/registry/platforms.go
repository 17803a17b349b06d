package registry

import (
	"context"
	"fmt"
	"sync"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// maxOffers bounds the memory for remembered platforms.
const maxOffers = 10_000

// offers caches the platforms of images, by digest. A digest never changes its meaning, so
// nothing has to be invalidated.
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

// Platforms are those of the image with a digest, such as linux/amd64 or linux/arm/v7; none
// if they are not known for all that it holds. Like Digest it is called for every change of
// a workload.
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
			return nil, nil // the node that pulls it will see
		}
	}
	config, err := body.readConfig(ctx, repo)
	if err != nil {
		return nil, err
	}
	return body.platforms(config), nil
}
