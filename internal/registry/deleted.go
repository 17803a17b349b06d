package registry

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/distribution/distribution/v3"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// Deleted is a deleted image that can still be restored. Its manifest and blobs stay until
// it expires.
type Deleted struct {
	Repository string    `json:"repository"`
	Tag        string    `json:"tag,omitempty"`
	Digest     string    `json:"digest"`
	DeleteTime time.Time `json:"deleteTime"`
	ExpireTime time.Time `json:"expireTime"`
}

func (d Deleted) path(dir string) string {
	sum := sha256.Sum256([]byte(d.Repository + "\n" + d.Tag + "\n" + d.Digest))
	return filepath.Join(dir, deletedDir, hex.EncodeToString(sum[:16])+".json")
}

const deletedDir = "deleted"

// Delete removes the tags that a tag or digest of a repository names, and returns what can
// be restored until it expires. It records that on disk before it removes anything. With
// now, nothing can be restored, and the next Collect removes it.
func (r *Registry) Delete(ctx context.Context, name, ref string, now bool) ([]Deleted, error) {
	ctx = r.log.context(ctx)
	r.changing.Lock()
	defer r.changing.Unlock()
	r.pushes.gate.Lock() // a tag that moves concurrently is moved before or after
	defer r.pushes.gate.Unlock()
	defer r.digests.forget()
	gone, err := r.delete(ctx, name, ref, now)
	if err != nil {
		return nil, fmt.Errorf("delete image %s, reference %s: %w", name, ref, err)
	}
	return gone, nil
}

func (r *Registry) delete(ctx context.Context, name, ref string, now bool) ([]Deleted, error) {
	repo, named, err := r.repository(ctx, name)
	if err != nil {
		return nil, err
	}
	d, err := digestOf(ctx, repo, named, ref)
	if err != nil {
		return nil, err
	}
	tags := []string{ref}
	if ref == d.String() {
		if tags, err = repo.Tags(ctx).Lookup(ctx, ocispec.Descriptor{Digest: d}); err != nil {
			return nil, fmt.Errorf("look for the tags of %s: %w", d, err)
		}
		if len(tags) == 0 {
			tags = []string{""}
		}
	}
	var gone []Deleted
	for _, tag := range tags {
		at := time.Now().UTC()
		one := Deleted{Repository: name, Tag: tag, Digest: d.String(), DeleteTime: at, ExpireTime: at.Add(r.keepDeleted())}
		if now {
			one.ExpireTime = at
			r.release(imageRef{name, one.Digest}, true)
		} else if err := r.bury(one); err != nil {
			return gone, err
		}
		if tag != "" {
			if err := repo.Tags(ctx).Untag(ctx, tag); err != nil {
				return gone, fmt.Errorf("take away the tag %s: %w", tag, err)
			}
		}
		gone = append(gone, one)
	}
	return gone, nil
}

func (r *Registry) repository(ctx context.Context, name string) (distribution.Repository, reference.Named, error) {
	named, err := reference.WithName(name)
	if err != nil {
		return nil, nil, err
	}
	repo, err := r.images.Repository(ctx, named)
	return repo, named, err
}

func (r *Registry) bury(d Deleted) error {
	data, err := json.Marshal(d)
	if err != nil {
		return err
	}
	path := d.path(r.dir)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("remember the deleted image: %w", err)
	}
	if err := atomicfile.Replace(path, data); err != nil {
		return fmt.Errorf("remember the deleted image: %w", err)
	}
	return nil
}

func (r *Registry) unearth(d Deleted) error {
	if err := os.Remove(d.path(r.dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the deleted image: %w", err)
	}
	return nil
}

// Deleted lists what can still be restored, the latest first.
func (r *Registry) Deleted() ([]Deleted, error) {
	entries, err := os.ReadDir(filepath.Join(r.dir, deletedDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list deleted images: %w", err)
	}
	var all []Deleted
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(r.dir, deletedDir, entry.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read a deleted image: %w", err)
		}
		var d Deleted
		if err := json.Unmarshal(data, &d); err != nil || entry.Name() != filepath.Base(d.path("")) {
			continue // an interrupted write, or a foreign file
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Deleted) int {
		return cmp.Or(b.DeleteTime.Compare(a.DeleteTime), cmp.Compare(a.Repository+":"+a.Tag, b.Repository+":"+b.Tag))
	})
	return all, nil
}
