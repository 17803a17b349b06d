package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

var (
	_ driver.ImageStore = (*Driver)(nil)
	_ driver.Weigher    = (*Driver)(nil)
)

// uses remembers when tasks last needed images, since the driver was opened.
type uses struct {
	mu   sync.Mutex
	last map[string]time.Time
}

func (u *uses) note(ref string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.last == nil {
		u.last = map[string]time.Time{}
	}
	u.last[ref] = time.Now()
}

func (u *uses) since(ref string, otherwise time.Time) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	if last, ok := u.last[ref]; ok {
		return last
	}
	return otherwise
}

// Images lists the images that are here. Those of all tasks are in use, whether they run or not.
func (d *Driver) Images(ctx context.Context) ([]driver.StoredImage, error) {
	ctx = d.scope(ctx)
	containers, err := d.client.ContainerService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	used := map[string]bool{}
	for _, c := range containers {
		used[c.Image] = true
	}
	records, err := d.client.ImageService().List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	here := platforms.OnlyStrict(platforms.DefaultSpec())
	all := make([]driver.StoredImage, 0, len(records))
	for _, record := range records {
		size, err := client.NewImageWithPlatform(d.client, record, here).Usage(ctx, client.WithSnapshotUsage())
		if err != nil {
			size = 0 // a pull of it was interrupted
		}
		all = append(all, driver.StoredImage{
			Ref: record.Name, Bytes: size, InUse: used[record.Name] || d.pulls.get(record.Name) != nil,
			LastUse: d.uses.since(record.Name, record.UpdatedAt),
		})
	}
	return all, nil
}

// RemoveImage removes an image, and the content and layers that no other image has. A task that starts at this moment
// pulls it again.
func (d *Driver) RemoveImage(ctx context.Context, ref string) error {
	lock := "image " + ref
	d.tasks.Lock(lock)
	defer d.tasks.Unlock(lock)
	ctx = d.scope(ctx)
	containers, err := d.client.ContainerService().List(ctx, fmt.Sprintf("image==%q", ref))
	if err != nil {
		return fmt.Errorf("remove image %s: look for tasks that use it: %w", ref, err)
	}
	if len(containers) > 0 {
		return fmt.Errorf("image %s is in use by task %s: %w", ref, containers[0].ID, driver.ErrInvalid)
	}
	d.images.drop(ref)
	if err := absent(d.client.ImageService().Delete(ctx, ref, images.SynchronousDelete())); err != nil {
		return fmt.Errorf("remove image %s: %w", ref, err)
	}
	return nil
}

// DiskUsage is what the task has written to its own layer, in bytes.
func (d *Driver) DiskUsage(ctx context.Context, id string) (int64, error) {
	usage, err := d.client.SnapshotService(d.snapshotter).Usage(d.scope(ctx), id)
	if errdefs.IsNotFound(err) {
		return 0, fmt.Errorf("measure the layer of task %s: %w", id, driver.ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("measure the layer of task %s: %w", id, err)
	}
	return usage.Size, nil
}

const (
	// watchUnpacking is how often a pull is measured. Measuring takes at most one part in so many of the time.
	watchUnpacking = 200 * time.Millisecond
	measureShare   = 5
	// A pull leaves this share of the disk free, but not more than so many bytes: the agent and a server on the same disk
	// need room for their own records.
	pullReserveShare = 20
	pullReserveMost  = 1 << 30
)

// guard ends a pull that would unpack more than limit bytes, or fill the disk. Sizes are measured on the disk, because an
// archive can claim anything about itself. A limit of 0 is none. The caller calls stop when the pull has ended.
func (d *Driver) guard(ctx context.Context, ref string, pull *fetching, limit int64) (guarded context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		pause := watchUnpacking
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			began := time.Now()
			if err := d.fits(ctx, ref, pull, limit); err != nil {
				cancel(err)
				return
			}
			pause = max(watchUnpacking, measureShare*time.Since(began))
		}
	})
	return ctx, func() {
		cancel(nil)
		work.Wait()
	}
}

// fits returns why a pull must end.
func (d *Driver) fits(ctx context.Context, ref string, pull *fetching, limit int64) error {
	var disk unix.Statfs_t
	if err := unix.Statfs(d.opts.rootDir(), &disk); err == nil {
		total, free := int64(disk.Blocks)*disk.Bsize, int64(disk.Bavail)*disk.Bsize
		if free < min(total/pullReserveShare, pullReserveMost) {
			return fmt.Errorf("the disk has only %s left, so image %s is not pulled: remove images or data from the node", spec.HumanBytes(free), ref)
		}
		if disk.Files > 0 && disk.Ffree < disk.Files/pullReserveShare {
			return fmt.Errorf("the disk has room for only %d more files, so image %s is not pulled: remove images or data from the node", disk.Ffree, ref)
		}
	}
	if limit <= 0 {
		return nil
	}
	size, err := d.unpackedBytes(ctx, pull.all())
	if err != nil || size <= limit {
		return nil // what cannot be measured now is measured once it is complete
	}
	return tooLarge(ref, limit)
}

func tooLarge(ref string, limit int64) error {
	return fmt.Errorf("image %s is larger than %s once it is unpacked, which is the cluster's limit: make it smaller, or raise security.maxUnpackedImage: %w",
		ref, spec.HumanBytes(limit), driver.ErrImage)
}

// unpackedBytes adds up the layers of an image as far as they are unpacked. Layers that are being unpacked count with what
// they have by now.
func (d *Driver) unpackedBytes(ctx context.Context, parts []imagespec.Descriptor) (total int64, err error) {
	layers := map[string]bool{}
	for _, part := range parts {
		if !images.IsConfigType(part.MediaType) {
			continue
		}
		data, err := content.ReadBlob(ctx, d.client.ContentStore(), part)
		if err != nil {
			return 0, err
		}
		var config imagespec.Image
		if err := json.Unmarshal(data, &config); err != nil {
			return 0, err
		}
		for i := range config.RootFS.DiffIDs {
			layers[identity.ChainID(config.RootFS.DiffIDs[:i+1]).String()] = true
		}
	}
	service := d.client.SnapshotService(d.snapshotter)
	var keys []string
	err = service.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		name := info.Name
		if strings.HasPrefix(name, snapshots.UnpackKeyPrefix) { // being unpacked: extract-RANDOM CHAIN
			_, name, _ = strings.Cut(name, " ")
		}
		if layers[name] {
			keys = append(keys, info.Name)
		}
		return nil
	})
	for _, key := range keys {
		usage, usageErr := service.Usage(ctx, key)
		if usageErr != nil && !errdefs.IsNotFound(usageErr) { // a finished layer has another name
			err = errors.Join(err, usageErr)
		}
		total += usage.Size
	}
	return total, err
}
