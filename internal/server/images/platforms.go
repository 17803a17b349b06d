package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	ocispec "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/image"
	"github.com/cloudless/cloudless/internal/registry"
)

// Pinned is the image of a revision: by digest and with its platforms, as far as both are
// known.
type Pinned struct {
	Image     string
	Platforms []string
	// Keepers are the tags that keep an image in the cluster's own registry.
	Keepers []TagVersion
}

func PinnedBy(r *v1.Revision) Pinned {
	return Pinned{Image: r.GetSpec().GetImage(), Platforms: r.GetSpec().GetPlatforms()}
}

// platforms returns the platforms of an image in the cluster's registry. They are unknown
// if this server has not copied the image yet: then the node that pulls it finds out.
func (s *Images) platforms(ctx context.Context, repository, digest string) []string {
	offers, err := s.registry.Platforms(ctx, repository, digest)
	if err != nil && !errors.Is(err, registry.ErrNotFound) {
		s.Logger.WarnContext(ctx, "cannot read the platforms of an image", "image", repository, "digest", digest, "error", err)
	}
	return plainPlatforms(offers)
}

// foreignPlatforms returns the platforms of an image in another registry. If the registry
// does not tell, the image is accepted.
func (s *Images) foreignPlatforms(ctx context.Context, n image.Name, digest string, login *registryLogin) ([]string, error) {
	offers, err := s.foreign.platforms(ctx, n, digest, login)
	if errors.Is(err, errPrivate) {
		return nil, refusePrivateRegistry(n, err)
	}
	if err != nil {
		s.Logger.DebugContext(ctx, "cannot read the platforms of an image", "image", n.String(), "error", err)
	}
	return plainPlatforms(offers), nil
}

// plainPlatforms drops variants of an architecture, such as v7 of arm: only the machine
// knows which of them it can run.
func plainPlatforms(offers []string) []string {
	var plain []string
	for _, offer := range offers {
		if parts := strings.Split(offer, "/"); len(parts) >= 2 {
			plain = append(plain, parts[0]+"/"+parts[1])
		}
	}
	slices.Sort(plain)
	return slices.Compact(plain)
}

// platforms asks once for each digest, whose content never changes.
func (f *foreign) platforms(ctx context.Context, n image.Name, digest string, login *registryLogin) ([]string, error) {
	key := n.Registry + "/" + n.Repository + "@" + digest
	f.mu.Lock()
	known, ok := f.offers[key]
	away := f.now().Before(f.away[n.Registry])
	f.mu.Unlock()
	switch {
	case ok:
		return known, nil
	case away:
		return nil, errAway
	}
	done, err := f.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, foreignPatience)
	defer cancel()
	ctx, denied := withDenied(ctx)
	offers, err := f.askPlatforms(ctx, n, digest, login)
	err = denied.err(err)
	f.mu.Lock()
	defer f.mu.Unlock()
	if errors.Is(err, errAway) {
		f.away[n.Registry] = f.now().Add(awayLife)
	}
	if err != nil {
		return nil, err
	}
	if len(f.offers) >= maxAnswers {
		clear(f.offers)
	}
	f.offers[key] = offers
	return offers, nil
}

// maxConfig limits how much a registry outside the cluster can make us read.
const maxConfig = 4 << 20

func (f *foreign) askPlatforms(ctx context.Context, n image.Name, digest string, login *registryLogin) ([]string, error) {
	from, err := name.NewRegistry(n.Registry)
	if err != nil {
		return nil, err
	}
	got, err := remote.Get(from.Repo(strings.Split(n.Repository, "/")...).Digest(digest), f.options(ctx, login)...)
	if err != nil && refused(err) == 0 {
		err = fmt.Errorf("%w: %w", errAway, err)
	}
	if err != nil {
		return nil, err
	}
	if got.MediaType.IsIndex() {
		index, err := got.ImageIndex()
		if err != nil {
			return nil, err
		}
		list, err := index.IndexManifest()
		if err != nil {
			return nil, err
		}
		return indexPlatforms(list), nil
	}
	img, err := got.Image()
	if err != nil {
		return nil, err
	}
	manifest, err := img.Manifest()
	if err != nil || manifest.Config.Size > maxConfig || !manifest.Config.MediaType.IsConfig() {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	return platformNames(config.Platform()), nil
}

// indexPlatforms returns none if any entry of an index has no platform.
func indexPlatforms(list *ocispec.IndexManifest) []string {
	var all []string
	for _, m := range list.Manifests {
		if m.Platform == nil {
			return nil
		}
		all = append(all, platformNames(m.Platform)...)
	}
	return all
}

// platformNames ignores entries that only accompany an image, such as signatures.
func platformNames(p *ocispec.Platform) []string {
	if p == nil || p.OS == "" || p.OS == "unknown" || p.Architecture == "" {
		return nil
	}
	return []string{p.OS + "/" + p.Architecture}
}
