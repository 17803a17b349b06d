package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// reaches caches what images consist of. That never changes.
type reaches struct {
	mu    sync.Mutex
	known map[string]map[string]bool // by the digest of the image
}

const (
	// maxReaches bounds the remembered images.
	maxReaches = 1000
	// deepestIndex is how many indexes may be inside of each other.
	deepestIndex = 4
)

// Reach returns the digests of everything that an image consists of: the image itself, what its index names, configurations
// and layers. It returns ErrNotFound if this registry does not have the image. The map must not be changed.
func (r *Registry) Reach(image string) (map[string]bool, error) {
	r.reaches.mu.Lock()
	defer r.reaches.mu.Unlock()
	if known, ok := r.reaches.known[image]; ok {
		return known, nil
	}
	all := map[string]bool{}
	complete, err := r.reach(all, image, deepestIndex)
	if err != nil || !complete {
		return all, err // manifests may arrive later
	}
	if r.reaches.known == nil || len(r.reaches.known) >= maxReaches {
		r.reaches.known = map[string]map[string]bool{}
	}
	r.reaches.known[image] = all
	return all, nil
}

// reach adds what a manifest names, and reports whether every manifest below it is here.
func (r *Registry) reach(all map[string]bool, manifest string, depth int) (complete bool, err error) {
	if depth == 0 {
		return true, nil
	}
	data, err := os.ReadFile(filepath.Join(r.blobDir(manifest), "data"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("manifest %s: %w", manifest, ErrNotFound)
	}
	if err != nil {
		return false, fmt.Errorf("read manifest %s: %w", manifest, err)
	}
	var body manifestBody
	if err := json.Unmarshal(data, &body); err != nil {
		return false, fmt.Errorf("read manifest %s: %w", manifest, err)
	}
	all[manifest], complete = true, true
	for _, child := range body.children() {
		all[child.Digest.String()] = true
	}
	for _, child := range body.Manifests {
		whole, err := r.reach(all, child.Digest.String(), depth-1)
		if err != nil && !errors.Is(err, ErrNotFound) { // of a platform that was not pushed, perhaps
			return false, err
		}
		complete = complete && whole
	}
	return complete, nil
}
