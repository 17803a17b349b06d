package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cloudless/cloudless/internal/driver"
)

// image is what a container needs to know about an unpacked image.
type image struct {
	parent string // the snapshot of its topmost layer
	config imagespec.ImageConfig
}

// imageCache spares Start from reading again what Prepare has just read. An image's record
// keeps its content and snapshots from being collected, and only Purge removes records.
type imageCache struct {
	mu     sync.Mutex
	images map[string]image
}

func (c *imageCache) get(ref string) (image, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.images[ref]
	return found, ok
}

func (c *imageCache) put(ref string, img image) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.images == nil {
		c.images = map[string]image{}
	}
	c.images[ref] = img
}

func (c *imageCache) drop(ref string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.images, ref)
}

// Prepare pulls and unpacks the task's image unless that has been done.
func (d *Driver) Prepare(ctx context.Context, task driver.Task) error {
	_, err := d.image(ctx, task)
	return err
}

// image returns the image of that reference, and pulls it if it is missing. It does not
// check for a newer version: the meaning of a reference must not change under a running
// replica, and owners pin it by digest.
func (d *Driver) image(ctx context.Context, task driver.Task) (image, error) {
	ref := task.Image
	d.uses.note(ref)
	if found, ok := d.images.get(ref); ok {
		return found, nil
	}
	lock := "image " + ref
	d.tasks.Lock(lock)
	defer d.tasks.Unlock(lock)
	if found, ok := d.images.get(ref); ok {
		return found, nil
	}
	ctx = d.scope(ctx)
	here, err := d.client.ImageService().Get(ctx, ref)
	if errdefs.IsNotFound(err) {
		here, err = d.pull(ctx, task)
	} else if err != nil {
		err = fmt.Errorf("look for image %s: %w", ref, err)
	}
	if err != nil {
		return image{}, err
	}
	loaded, err := d.unpacked(ctx, here)
	if err != nil {
		return image{}, err
	}
	d.images.put(ref, loaded)
	return loaded, nil
}

// unpacked checks that the image is for this machine and unpacks it if needed.
func (d *Driver) unpacked(ctx context.Context, img images.Image) (image, error) {
	here := platforms.OnlyStrict(platforms.DefaultSpec())
	manifest, err := images.Manifest(ctx, d.client.ContentStore(), img.Target, here)
	if errdefs.IsNotFound(err) {
		return image{}, otherPlatform(img.Name, d.offered(ctx, img.Target, d.stored))
	}
	if err != nil {
		return image{}, fmt.Errorf("read the manifest of image %s: %w", img.Name, err)
	}
	data, err := content.ReadBlob(ctx, d.client.ContentStore(), manifest.Config)
	if err != nil {
		return image{}, fmt.Errorf("read the configuration of image %s: %w", img.Name, err)
	}
	var config imagespec.Image
	if err := json.Unmarshal(data, &config); err != nil {
		return image{}, fmt.Errorf("read the configuration of image %s: %w: %w", img.Name, driver.ErrImage, err)
	}
	if !here.Match(platforms.Normalize(config.Platform)) {
		return image{}, otherPlatform(img.Name, []string{platforms.Format(config.Platform)})
	}
	if err := client.NewImageWithPlatform(d.client, img, here).Unpack(ctx, d.snapshotter); err != nil {
		return image{}, fmt.Errorf("unpack image %s: %w", img.Name, err)
	}
	return image{parent: identity.ChainID(config.RootFS.DiffIDs).String(), config: config.Config}, nil
}
