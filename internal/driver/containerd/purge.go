package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Purge removes everything of this driver from the machine: tasks, images, processes,
// mounts, cgroups, sockets and folders. In an outside daemon it removes only this cloud's
// namespace. The driver must be closed.
func Purge(ctx context.Context, opts Options) error {
	if err := opts.validate(); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if !opts.embedded() {
		if err := purgeOutside(ctx, opts); err != nil {
			return fmt.Errorf("purge: %w", err)
		}
	}
	if err := purgeMachine(opts); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	return nil
}

func purgeOutside(ctx context.Context, opts Options) error {
	d, err := Open(ctx, opts)
	if err != nil {
		return err
	}
	err = d.removeAllTasks(ctx)
	if err == nil {
		err = d.emptyNamespace(d.scope(ctx))
	}
	return errors.Join(err, d.Close())
}

// purgeMachine needs no daemon: a daemon's knowledge is in the folders, and what runs is in
// the cgroups. So it works on folders that no daemon can open.
func purgeMachine(opts Options) error {
	if err := os.MkdirAll(opts.rootDir(), 0o700); err != nil {
		return err
	}
	lock, err := lockDir(opts.rootDir())
	if err != nil {
		return err
	}
	defer lock.Close()
	cgroups, err := findCgroups()
	if err != nil {
		return err
	}
	// Shims last: they are the parents, and reap what is killed.
	if err := cgroups.kill(opts.cgroupParent()); err != nil {
		return err
	}
	if err := killShims(opts.shimDir(), ""); err != nil {
		return err
	}
	return errors.Join(cgroups.remove(opts.cgroupParent()), removeFolders(opts))
}

func (d *Driver) removeAllTasks(ctx context.Context) error {
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, task := range all {
		errs = append(errs, d.Remove(ctx, task.ID))
	}
	return errors.Join(errs...)
}

// emptyNamespace removes this cloud's objects from an outside daemon.
func (d *Driver) emptyNamespace(ctx context.Context) error {
	all, err := d.client.ImageService().List(ctx)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, img := range all {
		if err := absent(d.client.ImageService().Delete(ctx, img.Name, images.SynchronousDelete())); err != nil {
			return fmt.Errorf("remove image %s: %w", img.Name, err)
		}
	}
	held, err := d.client.LeasesService().List(ctx)
	if err != nil {
		return fmt.Errorf("list leases: %w", err)
	}
	for _, lease := range held { // they may hold content of an interrupted pull
		if err := absent(d.client.LeasesService().Delete(ctx, lease, leases.SynchronousDelete)); err != nil {
			return fmt.Errorf("remove lease %s: %w", lease.ID, err)
		}
	}
	if err := d.removeSnapshots(ctx); err != nil {
		return err
	}
	if err := absent(d.client.NamespaceService().Delete(ctx, d.opts.namespace())); err != nil {
		return fmt.Errorf("remove the namespace %s: %w", d.opts.namespace(), err)
	}
	return nil
}

// removeSnapshots removes what the collector has left, children before parents.
func (d *Driver) removeSnapshots(ctx context.Context) error {
	service := d.client.SnapshotService(d.snapshotter)
	for {
		var keys []string
		err := service.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
			keys = append(keys, info.Name)
			return nil
		})
		if err != nil {
			return fmt.Errorf("list snapshots: %w", err)
		}
		removed := false
		for _, key := range keys {
			switch err := service.Remove(ctx, key); {
			case err == nil || errdefs.IsNotFound(err):
				removed = true
			case !errdefs.IsFailedPrecondition(err): // it has children
				return fmt.Errorf("remove snapshot %s: %w", key, err)
			}
		}
		if len(keys) == 0 {
			return nil
		}
		if !removed {
			return fmt.Errorf("%d snapshots cannot be removed because they are in use", len(keys))
		}
	}
}

func removeFolders(opts Options) error {
	var errs []error
	for _, dir := range []string{
		opts.stateDir(), opts.socketDir(), opts.runcDir(), opts.recordDir(), opts.fifoDir(), opts.sysDirs(),
		opts.rootDir(), opts.shimDir(),
	} {
		if err := unmountBelow(dir); err != nil {
			errs = append(errs, err) // what is mounted there stays intact
			continue
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	// The run folder itself may hold other things.
	if err := os.Remove(opts.RunDir); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything in dir, so that removing dir never reaches into a mount.
func unmountBelow(dir string) error {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for mounts below %s: %w", dir, err)
	}
	if err := mount.UnmountRecursive(real, 0); err != nil {
		return fmt.Errorf("unmount what is below %s: %w", dir, err)
	}
	return nil
}
