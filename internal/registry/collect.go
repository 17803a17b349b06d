package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
)

// Keep reports whether a manifest without a tag is still needed.
type Keep func(repository, digest string) bool

// CollectOptions say what a collection removes.
type CollectOptions struct {
	// Keep is called for manifests that have no tag; nil keeps none.
	Keep Keep
	// Without are images by repository and tag that are treated as deleted with now, for a
	// dry run.
	Without []Deleted
	// Now also removes deleted images that could still be restored.
	Now bool
	// DryRun only counts.
	DryRun bool
}

func (o CollectOptions) keeps(repository, digest string) bool {
	return o.Keep != nil && o.Keep(repository, digest)
}

// Collect removes the manifests without a tag that Keep does not need, and the blobs that
// belong to no manifest. It returns how many bytes that freed.
//
// It may run while others push and pull. First it marks what is reachable while everything
// goes on, which reads files. Then it blocks new manifests and marks again, which reads
// only what is new, and moves aside what is not reachable. It keeps what pushes in progress
// rely on, and what is younger than the grace period unless it belonged to an image that
// was deleted with now.
func (r *Registry) Collect(ctx context.Context, o CollectOptions) (freed int64, err error) {
	r.changing.Lock()
	defer r.changing.Unlock()
	defer r.digests.forget()
	if err := r.expire(o); err != nil {
		return 0, fmt.Errorf("collect blobs: %w", err)
	}
	if _, err := r.mark(ctx, o); err != nil {
		return 0, fmt.Errorf("collect blobs: %w", err)
	}
	freed, err = r.sweep(ctx, o)
	if o.DryRun {
		return freed, err
	}
	// Also what an interrupted run has left.
	err = errors.Join(err, os.RemoveAll(r.asideDir()))
	if err != nil {
		return freed, fmt.Errorf("collect blobs: %w", err)
	}
	return freed, nil
}

// expire forgets the deleted images whose time is over.
func (r *Registry) expire(o CollectOptions) error {
	if o.DryRun {
		return nil
	}
	deleted, err := r.Deleted()
	if err != nil {
		return err
	}
	for _, d := range deleted {
		over := !time.Now().Before(d.ExpireTime)
		if !over && (!o.Now || o.keeps(d.Repository, d.Digest)) {
			continue
		}
		if err := r.unearth(d); err != nil {
			return err
		}
		r.release(imageRef{d.Repository, d.Digest}, false)
	}
	return nil
}

// asideDir holds what was collected until it is removed.
func (r *Registry) asideDir() string { return filepath.Join(r.dir, "collected") }

func (r *Registry) sweep(ctx context.Context, o CollectOptions) (freed int64, err error) {
	r.pushes.gate.Lock()
	defer r.pushes.gate.Unlock()
	found, err := r.mark(ctx, o)
	if err != nil {
		return 0, err
	}
	var failed []error
	remove := func(path string) {
		if o.DryRun {
			return
		}
		if err := os.RemoveAll(path); err != nil {
			failed = append(failed, err)
		}
	}
	// Names go before what they name: a crash in between leaves blobs that the next run
	// removes, and no dangling name.
	for name, repo := range found.repositories {
		for d := range repo.manifests {
			if !repo.kept[d] {
				remove(r.revisionDir(name, d))
				delete(r.released, imageRef{name, d})
			}
		}
		for d := range repo.layers {
			if !repo.needs[d] {
				remove(r.layerDir(name, d))
			}
		}
		if !o.DryRun {
			r.removeEmpty(name)
		}
	}
	for d, size := range found.garbage {
		freed += size
		if !o.DryRun {
			if err := r.putAside(d); err != nil {
				failed = append(failed, err)
			}
		}
	}
	return freed, errors.Join(failed...)
}

func (r *Registry) putAside(blob string) error {
	if err := os.MkdirAll(r.asideDir(), 0o700); err != nil {
		return err
	}
	d := digest.Digest(blob)
	return os.Rename(r.blobDir(blob), filepath.Join(r.asideDir(), d.Encoded()))
}

// removeEmpty removes the folders of a repository that has nothing left. Each is removed
// only if it is empty, so concurrent pushes are safe.
func (r *Registry) removeEmpty(name string) {
	dir := filepath.Join(r.repositoriesDir(), filepath.FromSlash(name))
	if entries, err := os.ReadDir(filepath.Join(dir, "_uploads")); err == nil && len(entries) > 0 {
		return
	}
	for _, sub := range []string{
		"_layers/sha256", "_layers/sha512", "_layers", "_manifests/revisions/sha256", "_manifests/revisions/sha512",
		"_manifests/revisions", "_manifests/tags", "_manifests", "_uploads",
	} {
		_ = os.Remove(filepath.Join(dir, sub))
	}
	for ; dir != r.repositoriesDir(); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// marked is what a registry has and which of it is reachable.
type marked struct {
	repositories map[string]*markedRepository
	garbage      map[string]int64 // sizes of unneeded blobs, by digest
}

type markedRepository struct {
	manifests map[string]time.Time // when it was pushed, by digest
	layers    map[string]time.Time // when it was linked, by digest
	kept      map[string]bool      // manifests
	needs     map[string]bool      // blobs of kept manifests and of pushes
}

func (r *Registry) mark(ctx context.Context, o CollectOptions) (*marked, error) {
	roots, err := r.roots(o)
	if err != nil {
		return nil, err
	}
	found := &marked{repositories: map[string]*markedRepository{}}
	names, err := r.repositoryNames(ctx)
	if err != nil {
		return nil, err
	}
	since := time.Now().Add(-r.grace)
	relied := r.pushes.reliedOn(since)
	needed, released := map[string]bool{}, map[string]bool{}
	for _, name := range names {
		repo, err := r.readRepository(name)
		if err != nil {
			return nil, err
		}
		found.repositories[name] = repo
		if err := r.markManifests(name, repo, roots, since, o); err != nil {
			return nil, err
		}
		own := map[string]bool{} // released by this repository
		for d := range repo.manifests {
			if repo.kept[d] {
				continue
			}
			if _, gone := roots.gone[imageRef{name, d}]; gone || r.childOfGone(name, d, roots) {
				node, err := r.node(d)
				if err != nil {
					return nil, err
				}
				own[d] = true
				for _, child := range node.children {
					own[child] = true
				}
			}
		}
		for d, linked := range repo.layers {
			young := linked.After(since) && !own[d]
			if young || relied[imageRef{name, d}] {
				repo.needs[d] = true
			}
		}
		maps.Copy(needed, repo.needs)
		maps.Copy(released, own)
	}
	for key := range relied {
		needed[key.ref] = true
	}
	found.garbage, err = r.unneeded(ctx, needed, released, since)
	return found, err
}

// roots are the manifests from which everything else is reached.
type roots struct {
	tagged map[imageRef]bool
	// gone are deleted manifests whose time is over; true if even users of the image do not
	// keep it.
	gone map[imageRef]bool
}

func (r *Registry) roots(o CollectOptions) (roots, error) {
	found := roots{tagged: map[imageRef]bool{}, gone: map[imageRef]bool{}}
	maps.Copy(found.gone, r.released)
	deleted, err := r.Deleted()
	if err != nil {
		return found, err
	}
	for _, d := range deleted {
		if o.Now || !time.Now().Before(d.ExpireTime) {
			found.gone[imageRef{d.Repository, d.Digest}] = false
			continue
		}
		found.tagged[imageRef{d.Repository, d.Digest}] = true
	}
	for _, d := range o.Without {
		found.gone[imageRef{d.Repository, d.Digest}] = false
	}
	return found, nil
}

// markManifests finds out which manifests of a repository stay, and what they need.
func (r *Registry) markManifests(name string, repo *markedRepository, roots roots, since time.Time, o CollectOptions) error {
	tags, err := r.readTags(name)
	if err != nil {
		return err
	}
	without := map[string]bool{}
	for _, d := range o.Without {
		if d.Repository == name {
			without[d.Tag] = true
		}
	}
	for tag, d := range tags {
		if !without[tag] {
			if err := r.keepManifest(repo, d); err != nil {
				return err
			}
			delete(r.released, imageRef{name, d}) // pushed again, or it had another tag
		}
	}
	for d, pushed := range repo.manifests {
		key := imageRef{name, d}
		forced, gone := roots.gone[key]
		young := pushed.After(since) || r.digests.askedSince(key, since)
		if roots.tagged[key] || o.keeps(name, d) && !forced || young && !gone && !r.childOfGone(name, d, roots) {
			if err := r.keepManifest(repo, d); err != nil {
				return err
			}
		}
	}
	// A manifest that only accompanies another, such as a signature, stays with it.
	for d := range repo.manifests {
		node, err := r.node(d)
		if err != nil {
			return err
		}
		if node.subject != "" && repo.kept[node.subject] {
			if err := r.keepManifest(repo, d); err != nil {
				return err
			}
		}
	}
	return nil
}

// childOfGone reports whether a manifest belongs to an index that is removed at once.
func (r *Registry) childOfGone(name, child string, roots roots) bool {
	for key := range roots.gone {
		if key.name != name {
			continue
		}
		if slices.Contains(r.known[key.ref].children, child) {
			return true
		}
	}
	return false
}

func (r *Registry) keepManifest(repo *markedRepository, d string) error {
	if _, there := repo.manifests[d]; !there || repo.kept[d] {
		return nil
	}
	repo.kept[d], repo.needs[d] = true, true
	node, err := r.node(d)
	if err != nil {
		return err
	}
	for _, child := range node.children {
		repo.needs[child] = true
		if err := r.keepManifest(repo, child); err != nil {
			return err
		}
	}
	return nil
}

// unneeded finds the blobs that nothing needs.
func (r *Registry) unneeded(ctx context.Context, needed, released map[string]bool, since time.Time) (map[string]int64, error) {
	garbage := map[string]int64{}
	err := r.eachBlob(ctx, func(d string, info fs.FileInfo) {
		if !needed[d] && (released[d] || info.ModTime().Before(since)) {
			garbage[d] = info.Size()
		}
	})
	return garbage, err
}
