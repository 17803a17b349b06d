package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/distribution/v3/manifest/schema2"
	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ErrNotFound means that the registry has no such repository, tag or digest.
var ErrNotFound = errors.New("not in the cluster's registry")

// Descriptor is what the registry knows about an image.
type Descriptor struct {
	Digest    string
	Size      int64 // of everything that a pull fetches; of an index, of all platforms together
	MediaType string
	PushTime  time.Time
	Platforms []string // such as linux/amd64 or linux/arm/v7; none if it is not a runnable image
	// Labels are those that a single image was built with. Of an index, they are its annotations.
	Labels map[string]string
}

// Repository is a repository and its tags in alphabetical order. It has none if its images
// can be reached by digest only.
type Repository struct {
	Name string
	Tags []string
}

// Resolve returns what a tag or digest of a repository stands for now. The repository is
// named without the registry's host.
func (r *Registry) Resolve(ctx context.Context, name, ref string) (Descriptor, error) {
	ctx = r.log.context(ctx)
	d, err := r.resolve(ctx, name, ref)
	if err != nil {
		return Descriptor{}, fmt.Errorf("image %s, reference %s: %w", name, ref, err)
	}
	return d, nil
}

func (r *Registry) resolve(ctx context.Context, name, ref string) (Descriptor, error) {
	named, err := reference.WithName(name)
	if err != nil {
		return Descriptor{}, err
	}
	repo, err := r.images.Repository(ctx, named)
	if err != nil {
		return Descriptor{}, err
	}
	dgst, err := digestOf(ctx, repo, named, ref)
	if err != nil {
		return Descriptor{}, err
	}
	manifests, err := repo.Manifests(ctx)
	if err != nil {
		return Descriptor{}, err
	}
	mediaType, payload, body, err := readManifest(ctx, manifests, dgst)
	if err != nil {
		return Descriptor{}, err
	}
	config, err := body.readConfig(ctx, repo)
	if err != nil {
		return Descriptor{}, err
	}
	sizes := map[digest.Digest]int64{dgst: int64(len(payload))}
	if err := body.addSizes(ctx, manifests, sizes); err != nil {
		return Descriptor{}, err
	}
	d := Descriptor{Digest: dgst.String(), MediaType: mediaType, PushTime: r.pushTime(name, ref, dgst.String())}
	d.Platforms, d.Labels = body.platforms(config), body.labels(config)
	for _, size := range sizes {
		d.Size += size
	}
	return d, nil
}

// pushTime is when the tag was set, or else when the manifest came.
func (r *Registry) pushTime(name, ref, dgst string) time.Time {
	paths := []string{filepath.Join(r.revisionDir(name, dgst), "link")}
	if ref != dgst {
		paths = []string{r.tagLink(name, ref), paths[0]}
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			return info.ModTime()
		}
	}
	return time.Time{}
}

// Digest returns the digest that a tag or digest of a repository stands for now. It reads
// as little as possible, because every change of a workload calls it.
func (r *Registry) Digest(ctx context.Context, name, ref string) (string, error) {
	known, ok, changes := r.digests.get(imageRef{name, ref})
	if ok {
		return known, nil
	}
	ctx = r.log.context(ctx)
	d, err := r.digest(ctx, name, ref)
	if err != nil {
		return "", fmt.Errorf("image %s, reference %s: %w", name, ref, err)
	}
	r.digests.put(imageRef{name, ref}, d.String(), changes)
	return d.String(), nil
}

func (r *Registry) digest(ctx context.Context, name, ref string) (digest.Digest, error) {
	named, err := reference.WithName(name)
	if err != nil {
		return "", err
	}
	repo, err := r.images.Repository(ctx, named)
	if err != nil {
		return "", err
	}
	d, err := digestOf(ctx, repo, named, ref)
	if err != nil {
		return "", err
	}
	manifests, err := repo.Manifests(ctx)
	if err != nil {
		return "", err
	}
	if there, err := manifests.Exists(ctx, d); err != nil || there {
		return d, err
	}
	return "", ErrNotFound
}

// digestOf distinguishes digests from tags, which cannot contain a colon. It never passes
// an invalid tag to the storage, because it becomes a file name.
func digestOf(ctx context.Context, repo distribution.Repository, named reference.Named, ref string) (digest.Digest, error) {
	if d, err := digest.Parse(ref); err == nil {
		return d, nil
	}
	tagged, err := reference.WithTag(named, ref)
	if err != nil {
		return "", err
	}
	d, err := repo.Tags(ctx).Get(ctx, tagged.Tag())
	if _, unknown := errors.AsType[distribution.ErrTagUnknown](err); unknown {
		return "", ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("read the tag: %w", err)
	}
	return d.Digest, nil
}

// manifestBody is what the manifests of images and of indexes may hold.
type manifestBody struct {
	SchemaVersion int                  `json:"schemaVersion"`
	Config        *ocispec.Descriptor  `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
	Subject       *ocispec.Descriptor  `json:"subject"`
	Annotations   map[string]string    `json:"annotations"`
}

// readManifest returns ErrNotFound if the digest has none.
func readManifest(ctx context.Context, manifests distribution.ManifestService, dgst digest.Digest) (mediaType string, payload []byte, body manifestBody, err error) {
	manifest, err := manifests.Get(ctx, dgst)
	if _, unknown := errors.AsType[distribution.ErrManifestUnknownRevision](err); unknown {
		return "", nil, manifestBody{}, ErrNotFound
	}
	if err == nil {
		mediaType, payload, err = manifest.Payload()
	}
	if err == nil {
		err = json.Unmarshal(payload, &body)
	}
	if err != nil {
		return "", nil, manifestBody{}, fmt.Errorf("read the manifest: %w", err)
	}
	return mediaType, payload, body, nil
}

// addSizes adds the sizes of everything that the manifest names, each once. Some of what an
// index names may be missing here.
func (manifest manifestBody) addSizes(ctx context.Context, manifests distribution.ManifestService, sizes map[digest.Digest]int64) error {
	for _, d := range manifest.children() {
		sizes[d.Digest] = d.Size
	}
	for _, d := range manifest.Manifests {
		child, err := manifests.Get(ctx, d.Digest)
		if _, unknown := errors.AsType[distribution.ErrManifestUnknownRevision](err); unknown {
			delete(sizes, d.Digest)
			continue
		}
		if err != nil {
			return fmt.Errorf("read the manifest %s: %w", d.Digest, err)
		}
		_, payload, err := child.Payload()
		if err != nil {
			return fmt.Errorf("read the manifest %s: %w", d.Digest, err)
		}
		var body manifestBody
		if err := json.Unmarshal(payload, &body); err != nil {
			return fmt.Errorf("read the manifest %s: %w", d.Digest, err)
		}
		for _, d := range body.children() {
			sizes[d.Digest] = d.Size
		}
	}
	return nil
}

// imageConfig is what is read of the configuration of a single image.
type imageConfig struct {
	ocispec.Platform
	Config struct{ Labels map[string]string }
}

// maxConfig bounds what a client can make us read into memory.
const maxConfig = 4 << 20

// readConfig returns the configuration of a single image, and nil for anything else.
func (manifest manifestBody) readConfig(ctx context.Context, repo distribution.Repository) (*imageConfig, error) {
	c := manifest.Config
	if c == nil || c.MediaType != ocispec.MediaTypeImageConfig && c.MediaType != schema2.MediaTypeImageConfig {
		return nil, nil
	}
	blob, err := repo.Blobs(ctx).Open(ctx, c.Digest)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	defer blob.Close()
	config := &imageConfig{}
	if err := json.NewDecoder(io.LimitReader(blob, maxConfig)).Decode(config); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return config, nil
}

// platforms are read from an index, where they stand beside the images, or from the configuration of a single image.
func (manifest manifestBody) platforms(config *imageConfig) []string {
	var found []ocispec.Platform
	for _, m := range manifest.Manifests {
		if m.Platform != nil {
			found = append(found, *m.Platform)
		}
	}
	if config != nil {
		found = append(found, config.Platform)
	}
	return platformNames(found)
}

// maxLabels and maxLabel bound what a list of images has to carry for each of them.
const (
	maxLabels = 64
	maxLabel  = 4 << 10 // key and value, in bytes
)

// labels leaves out those that are too long, and those that are too many in the order of their keys.
func (manifest manifestBody) labels(config *imageConfig) map[string]string {
	all := manifest.Annotations
	if config != nil {
		all = config.Config.Labels
	}
	kept := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if len(kept) < maxLabels && len(key)+len(all[key]) <= maxLabel {
			kept[key] = all[key]
		}
	}
	return kept
}

// platformNames leaves out signatures and attestations, whose platform is unknown.
func platformNames(platforms []ocispec.Platform) []string {
	var names []string
	for _, p := range platforms {
		if p.OS == "" || p.OS == "unknown" || p.Architecture == "" {
			continue
		}
		name := p.OS + "/" + p.Architecture
		if p.Variant != "" {
			name += "/" + p.Variant
		}
		names = append(names, name)
	}
	return names
}

// List returns all repositories in alphabetical order.
func (r *Registry) List(ctx context.Context) ([]Repository, error) {
	ctx = r.log.context(ctx)
	var names []string
	err := r.images.Enumerate(ctx, func(name string) error {
		names = append(names, name)
		return ctx.Err()
	})
	if _, empty := errors.AsType[storagedriver.PathNotFoundError](err); err != nil && !empty {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	slices.Sort(names)
	var repositories []Repository
	for _, name := range names {
		tags, err := r.tags(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("list the tags of %s: %w", name, err)
		}
		repositories = append(repositories, Repository{Name: name, Tags: tags})
	}
	return repositories, nil
}

func (r *Registry) tags(ctx context.Context, name string) ([]string, error) {
	named, err := reference.WithName(name)
	if err != nil {
		return nil, err
	}
	repo, err := r.images.Repository(ctx, named)
	if err != nil {
		return nil, err
	}
	tags, err := repo.Tags(ctx).All(ctx)
	if _, untagged := errors.AsType[distribution.ErrRepositoryUnknown](err); untagged {
		return nil, nil
	}
	return tags, err
}
