package containerd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/signal"

	"github.com/cloudless/cloudless/internal/driver"
)

// killTime is how long a process may take to die once it was killed.
const killTime = 10 * time.Second

// Stop sends the signal, or the image's own if it is empty, or SIGTERM.
func (d *Driver) Stop(ctx context.Context, id string, name string, grace time.Duration) error {
	container, err := d.container(ctx, id)
	if err != nil {
		return err
	}
	sig, err := stopSignal(name, container.Labels[labelStop])
	if err != nil {
		return fmt.Errorf("stop task %s: %w", id, err)
	}
	if err := d.kill(ctx, id, sig); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, grace)
	_, err = d.Wait(patient, id)
	cancel()
	if err == nil || errors.Is(err, errNeverStarted) || errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("stop task %s: %w", id, err)
	}
	if err := d.kill(ctx, id, syscall.SIGKILL); err != nil {
		return err
	}
	if _, err := d.Wait(ctx, id); err != nil {
		return fmt.Errorf("stop task %s: %w", id, err)
	}
	return nil
}

// stopSignal is the signal of that name or, if it is empty, the image's own. If the image's
// does not exist, it is SIGTERM, because no caller could fix that.
func stopSignal(name, ofImage string) (syscall.Signal, error) {
	if name != "" {
		return parseSignal(name)
	}
	if sig, err := parseSignal(ofImage); err == nil {
		return sig, nil
	}
	return syscall.SIGTERM, nil
}

// parseSignal reads a name or a number.
func parseSignal(name string) (syscall.Signal, error) {
	sig, err := signal.ParseSignal(name)
	if err == nil && !signal.ValidSignalForPlatform(sig) {
		err = fmt.Errorf("invalid signal: %s", name)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return sig, nil
}

// kill sends a signal to the task's first process. It is no error if that has exited.
func (d *Driver) kill(ctx context.Context, id string, sig syscall.Signal) error {
	if sig == syscall.SIGKILL {
		if err := d.records.change(id, func(rec *record) { rec.Killed = true }); err != nil {
			return err
		}
	}
	_, err := d.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: id, Signal: uint32(sig)})
	if err = native(err); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) && !sandboxEnded(err) {
		return fmt.Errorf("send signal %d to task %s: %w", sig, id, err)
	}
	return nil
}

// Signal sends a signal to the task's first process.
func (d *Driver) Signal(ctx context.Context, id string, name string) error {
	sig, err := parseSignal(name)
	if err != nil {
		return fmt.Errorf("signal task %s: %w", id, err)
	}
	if _, err := d.container(ctx, id); err != nil {
		return err
	}
	if _, err := d.runningPID(ctx, id); err != nil {
		return fmt.Errorf("signal task %s: %w", id, err)
	}
	return d.kill(ctx, id, sig)
}

// Remove kills the task if it runs and removes everything of it.
func (d *Driver) Remove(ctx context.Context, id string) error {
	if !validTaskID.MatchString(id) {
		return fmt.Errorf("remove task %q: %w", id, driver.ErrInvalid)
	}
	d.tasks.Lock(id)
	defer d.tasks.Unlock(id)
	return d.remove(ctx, id)
}

// remove does not rely on any state: it may follow a crash at any point. The container goes
// last, so that List names the task until everything else is gone.
func (d *Driver) remove(ctx context.Context, id string) error {
	if err := d.end(ctx, id); err != nil {
		if !d.opts.embedded() {
			return fmt.Errorf("remove task %s: %w", id, err)
		}
		d.opts.Log.Warn("A shim does not end its task and is killed.", "task", id, "error", err)
		if err := killShims(d.opts.shimDir(), id); err != nil {
			return fmt.Errorf("remove task %s: %w", id, err)
		}
		if err := d.end(ctx, id); err != nil {
			return fmt.Errorf("remove task %s: %w", id, err)
		}
	}
	path := d.cgroupPath(id)
	if err := d.cgroups.kill(path); err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	err := errors.Join(
		d.removeBundle(id),
		d.cgroups.remove(path),
		os.RemoveAll(filepath.Join(d.opts.runcDir(), d.opts.namespace(), id)),
		d.removeSandbox(id),
		removeDeadSocket(d.shimSocket(id)),
		os.RemoveAll(d.opts.pipeDir(id)),
		d.removeSys(id),
		d.removeSnapshot(ctx, id),
	)
	if err == nil { // otherwise the next removal can still read the exit
		err = d.records.remove(id)
	}
	if err == nil {
		err = absent(d.client.ContainerService().Delete(ctx, id))
	}
	if err != nil {
		return fmt.Errorf("remove task %s: %w", id, err)
	}
	return nil
}

// removeSnapshot uses the snapshotter with which the container was created, which may have
// been another one.
func (d *Driver) removeSnapshot(ctx context.Context, id string) error {
	container, err := d.container(ctx, id)
	if errors.Is(err, driver.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return absent(d.client.SnapshotService(container.Snapshotter).Remove(ctx, id))
}

// end kills the task and lets the shim clean up and end itself.
func (d *Driver) end(ctx context.Context, id string) error {
	process, err := d.process(ctx, id)
	if err != nil {
		return err
	}
	if process == nil {
		return d.killUnknownShim(id)
	}
	if err := d.kill(ctx, id, syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	if _, err := d.Wait(ctx, id); err != nil && !errors.Is(err, driver.ErrNotFound) && !errors.Is(err, errNeverStarted) {
		return err
	}
	_, err = d.client.TaskService().Delete(ctx, &tasks.DeleteTaskRequest{ContainerID: id})
	return absent(native(err))
}

// killUnknownShim kills the shim of a task if there is one. A daemon that was killed while
// it started a shim does not know it, and the shim would wait forever.
func (d *Driver) killUnknownShim(id string) error {
	if !d.opts.embedded() || !listens(d.shimSocket(id)) {
		return nil
	}
	return killShims(d.opts.shimDir(), id)
}

// absent ignores errors about things that do not exist.
func absent(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeBundle removes what a killed daemon left of the task's bundle. An outside daemon
// manages its own bundles.
func (d *Driver) removeBundle(id string) error {
	if !d.opts.embedded() {
		return nil
	}
	inside := filepath.Join("io.containerd.runtime.v2.task", d.opts.namespace(), id)
	bundle := filepath.Join(d.opts.stateDir(), inside)
	if err := mount.UnmountRecursive(filepath.Join(bundle, "rootfs"), 0); err != nil {
		return fmt.Errorf("unmount the root filesystem: %w", err)
	}
	return errors.Join(os.RemoveAll(bundle), os.RemoveAll(filepath.Join(d.opts.rootDir(), inside)))
}

// shimSocket is where a shim listens, as containerd names it.
func (d *Driver) shimSocket(id string) string {
	dir := d.opts.socketDir()
	if !d.opts.embedded() {
		dir = filepath.Join(defaults.DefaultStateDir, "s")
	}
	name := sha256.Sum256([]byte(filepath.Join(d.opts.address(), d.opts.namespace(), id)))
	return filepath.Join(dir, fmt.Sprintf("%x", name))
}

// removeDeadSocket removes a socket without a listener.
func removeDeadSocket(path string) error {
	if listens(path) {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of a dead shim: %w", err)
	}
	return nil
}

func listens(path string) bool {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
