package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// This file knows the folder layout of the storage library, for operations that the library
// does not offer while it serves.

func (r *Registry) storageDir() string { return filepath.Join(r.dir, "docker", "registry", "v2") }

func (r *Registry) repositoriesDir() string { return filepath.Join(r.storageDir(), "repositories") }

func (r *Registry) blobDir(blob string) string {
	d := digest.Digest(blob)
	return filepath.Join(r.storageDir(), "blobs", d.Algorithm().String(), d.Encoded()[:2], d.Encoded())
}

func (r *Registry) manifestsDir(repository string) string {
	return filepath.Join(r.repositoriesDir(), filepath.FromSlash(repository), "_manifests")
}

func (r *Registry) revisionDir(repository, manifest string) string {
	d := digest.Digest(manifest)
	return filepath.Join(r.manifestsDir(repository), "revisions", d.Algorithm().String(), d.Encoded())
}

func (r *Registry) layerDir(repository, blob string) string {
	d := digest.Digest(blob)
	return filepath.Join(r.repositoriesDir(), filepath.FromSlash(repository), "_layers", d.Algorithm().String(), d.Encoded())
}

func (r *Registry) tagLink(repository, tag string) string {
	return filepath.Join(r.manifestsDir(repository), "tags", tag, "current", "link")
}

// repositoryNames lists every repository, even those without images.
func (r *Registry) repositoryNames(ctx context.Context) ([]string, error) {
	var names []string
	root := r.repositoriesDir()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !entry.IsDir() || !strings.HasPrefix(entry.Name(), "_"):
			return nil
		}
		name, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		if name = filepath.ToSlash(name); len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
		return fs.SkipDir
	})
	return names, err
}

func (r *Registry) readRepository(name string) (*markedRepository, error) {
	repo := &markedRepository{kept: map[string]bool{}, needs: map[string]bool{}}
	var err error
	if repo.manifests, err = readLinks(filepath.Join(r.manifestsDir(name), "revisions")); err != nil {
		return nil, err
	}
	repo.layers, err = readLinks(filepath.Join(r.repositoriesDir(), filepath.FromSlash(name), "_layers"))
	return repo, err
}

// readLinks reads <dir>/<algorithm>/<hex>/link.
func readLinks(dir string) (map[string]time.Time, error) {
	links := map[string]time.Time{}
	algorithms, err := readDir(dir)
	if err != nil {
		return nil, err
	}
	for _, algorithm := range algorithms {
		entries, err := readDir(filepath.Join(dir, algorithm.Name()))
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm.Name()), entry.Name())
			info, err := os.Stat(filepath.Join(dir, algorithm.Name(), entry.Name(), "link"))
			if errors.Is(err, fs.ErrNotExist) || d.Validate() != nil {
				continue
			}
			if err != nil {
				return nil, err
			}
			links[d.String()] = info.ModTime()
		}
	}
	return links, nil
}

// readTags returns the digests of a repository's tags.
func (r *Registry) readTags(name string) (map[string]string, error) {
	entries, err := readDir(filepath.Join(r.manifestsDir(name), "tags"))
	if err != nil {
		return nil, err
	}
	tags := map[string]string{}
	for _, entry := range entries {
		link, err := os.ReadFile(r.tagLink(name, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // appears or disappears at this moment
		}
		if err != nil {
			return nil, err
		}
		tags[entry.Name()] = strings.TrimSpace(string(link))
	}
	return tags, nil
}

func (r *Registry) eachBlob(ctx context.Context, visit func(blob string, data fs.FileInfo)) error {
	root := filepath.Join(r.storageDir(), "blobs")
	algorithms, err := readDir(root)
	if err != nil {
		return err
	}
	for _, algorithm := range algorithms {
		shards, err := readDir(filepath.Join(root, algorithm.Name()))
		if err != nil {
			return err
		}
		for _, shard := range shards {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			blobs, err := readDir(filepath.Join(root, algorithm.Name(), shard.Name()))
			if err != nil {
				return err
			}
			for _, blob := range blobs {
				d := digest.NewDigestFromEncoded(digest.Algorithm(algorithm.Name()), blob.Name())
				info, err := os.Stat(filepath.Join(root, algorithm.Name(), shard.Name(), blob.Name(), "data"))
				if err == nil && d.Validate() == nil {
					visit(d.String(), info)
				} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
	}
	return nil
}

// readDir reads a folder that may be missing.
func readDir(path string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}

// node is a manifest in the dependency graph. It never changes, so it is read once.
type node struct {
	children []string // blobs and manifests
	subject  string   // what it accompanies
}

func (r *Registry) node(manifest string) (node, error) {
	if known, ok := r.known[manifest]; ok {
		return known, nil
	}
	data, err := os.ReadFile(filepath.Join(r.blobDir(manifest), "data"))
	if errors.Is(err, fs.ErrNotExist) {
		return node{}, nil // a dangling name; not cached, it may come back
	}
	if err != nil {
		return node{}, fmt.Errorf("read manifest %s: %w", manifest, err)
	}
	var body manifestBody
	if err := json.Unmarshal(data, &body); err != nil {
		return node{}, fmt.Errorf("read manifest %s: %w", manifest, err)
	}
	var made node
	for _, d := range body.children() {
		made.children = append(made.children, d.Digest.String())
	}
	if body.Subject != nil {
		made.subject = body.Subject.Digest.String()
	}
	if r.known == nil || len(r.known) > maxDigests {
		r.known = map[string]node{}
	}
	r.known[manifest] = made
	return made, nil
}

// children is everything that a manifest names.
func (manifest manifestBody) children() []ocispec.Descriptor {
	var all []ocispec.Descriptor
	if manifest.Config != nil {
		all = append(all, *manifest.Config)
	}
	return append(append(all, manifest.Layers...), manifest.Manifests...)
}
