package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/logfile"
)

// stockRuntime is the shim of an outside daemon.
const stockRuntime = "io.containerd.runc.v2"

// undoTime bounds the cleanup after a failed start.
const undoTime = 30 * time.Second

// Start creates the container and runs it. It does not touch a task that was started
// before, in this run or an earlier one. What a crash left of a task that was not started
// is removed first.
func (d *Driver) Start(ctx context.Context, task driver.Task) (_ driver.Status, err error) {
	if err := validateTask(task); err != nil {
		return driver.Status{}, err
	}
	if task.SecretEnv != "" && !d.opts.embedded() { // the shim of an outside daemon would write it to disk
		return driver.Status{}, fmt.Errorf("start task %s: secrets cannot be in its environment with an outside containerd, only in files: %w", task.ID, driver.ErrInvalid)
	}
	d.tasks.Lock(task.ID)
	defer d.tasks.Unlock(task.ID)
	before, err := d.started(ctx, task.ID)
	if before.ID != "" || err != nil {
		return before, err
	}
	img, err := d.image(ctx, task)
	if err != nil {
		return driver.Status{}, fmt.Errorf("start task %s: %w", task.ID, err)
	}
	defer func() {
		if err == nil {
			return
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		if undoErr := d.remove(undo, task.ID); undoErr != nil {
			err = errors.Join(err, fmt.Errorf("clear away what was left: %w", undoErr))
		}
	}()
	mounts, err := d.create(ctx, task, img)
	if err != nil {
		return driver.Status{}, err
	}
	return d.run(ctx, task, mounts)
}

// started returns the status of a task that was started before, or an empty one, and
// removes a task that was created but not started.
func (d *Driver) started(ctx context.Context, id string) (driver.Status, error) {
	container, err := d.container(ctx, id)
	if errors.Is(err, driver.ErrNotFound) {
		return driver.Status{}, nil
	}
	if err != nil {
		return driver.Status{}, err
	}
	status, err := d.status(ctx, container)
	if err != nil || status.State != driver.StateCreated {
		return status, err
	}
	return driver.Status{}, d.remove(ctx, id)
}

// create creates the container and its snapshot. The container comes first: it keeps the
// snapshot from being collected, and makes List name the task.
func (d *Driver) create(ctx context.Context, task driver.Task, img image) ([]mount.Mount, error) {
	labels := d.labels(task, img)
	container := containers.Container{
		ID:          task.ID,
		Labels:      labels,
		Image:       task.Image,
		Snapshotter: d.snapshotter,
		SnapshotKey: task.ID,
	}
	spec, err := d.spec(ctx, task, &container, img.config)
	if err != nil {
		return nil, err
	}
	var snapshot []snapshots.Opt
	if mapped, err := d.wantsUserNamespace(task); err != nil {
		return nil, err
	} else if mapped {
		const lock = "ids"
		d.tasks.Lock(lock)
		ids, err := d.freeRange(ctx)
		if err == nil {
			err = d.mapUsers(ctx, task, ids, spec)
		}
		if err == nil {
			labels[labelIDs], snapshot = ids.label(), append(snapshot, ids.remapped())
			err = d.addContainer(ctx, task, &container, spec)
		}
		d.tasks.Unlock(lock)
		if err != nil {
			return nil, err
		}
	} else if err := d.addContainer(ctx, task, &container, spec); err != nil {
		return nil, err
	}
	mounts, err := d.client.SnapshotService(d.snapshotter).Prepare(ctx, task.ID, img.parent, snapshot...)
	if err != nil {
		d.images.drop(task.Image)
		return nil, fmt.Errorf("make the root filesystem of task %s: %w", task.ID, err)
	}
	if err := d.setUser(ctx, firstOf(task.User, img.config.User, "root"), container, spec); err != nil {
		return nil, err
	}
	if err := checkRestricted(task, spec); err != nil || task.Owner == nil {
		return mounts, err
	}
	if err := task.Owner(userOf(spec)); err != nil {
		return nil, fmt.Errorf("start task %s: %w", task.ID, err)
	}
	return mounts, nil
}

// addContainer gives containerd the container of a task.
func (d *Driver) addContainer(ctx context.Context, task driver.Task, container *containers.Container, spec *oci.Spec) (err error) {
	if container.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return fmt.Errorf("describe the container of task %s: %w", task.ID, err)
	}
	if container.Runtime, err = d.runtime(task, container.Labels[labelIDs] != ""); err != nil {
		return err
	}
	if _, err := d.client.ContainerService().Create(ctx, *container); err != nil {
		return fmt.Errorf("make the container of task %s: %w", task.ID, err)
	}
	return nil
}

// setUser completes the container once its root filesystem exists and the user can be
// looked up.
func (d *Driver) setUser(ctx context.Context, user string, container containers.Container, spec *oci.Spec) error {
	changed, err := d.lookupUser(ctx, user, &container, spec)
	if err != nil {
		return fmt.Errorf("start task %s: %w", container.ID, err)
	}
	if !changed {
		return nil
	}
	if container.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return fmt.Errorf("describe the container of task %s: %w", container.ID, err)
	}
	if _, err := d.client.ContainerService().Update(ctx, container, "spec"); err != nil {
		return fmt.Errorf("change the container of task %s: %w", container.ID, err)
	}
	return nil
}

func (d *Driver) labels(task driver.Task, img image) map[string]string {
	labels := map[string]string{labelBoot: d.bootID}
	if img.config.StopSignal != "" {
		labels[labelStop] = img.config.StopSignal
	}
	if task.Sandbox != "" {
		labels[labelSandbox] = task.Sandbox
	}
	if task.Security.Profile == driver.Restricted {
		labels[labelProfile] = string(driver.Restricted)
	}
	for key, value := range maps.All(task.Labels) {
		labels[labelOwner+key] = value
	}
	return labels
}

// runtime is our own shim under the embedded daemon and the stock one otherwise, in both
// cases with a state folder that no other cloud uses.
func (d *Driver) runtime(task driver.Task, mapped bool) (containers.RuntimeInfo, error) {
	name := d.shim
	if !d.opts.embedded() {
		name = stockRuntime
	}
	program, err := d.runtimeFor(task, mapped)
	if err != nil {
		return containers.RuntimeInfo{}, err
	}
	root := d.opts.runcDir()
	if task.Sandbox != "" && task.SecretEnv != "" { // unlike runc, the program of a sandbox keeps variables in its state
		root = filepath.Join(filepath.Dir(task.SecretEnv), "state-of-sandbox")
	}
	opts, err := typeurl.MarshalAny(&options.Options{BinaryName: program, Root: root})
	if err != nil {
		return containers.RuntimeInfo{}, fmt.Errorf("describe the runtime: %w", err)
	}
	return containers.RuntimeInfo{Name: name, Options: opts}, nil
}

// run starts the shim and, through it, the container's first process.
func (d *Driver) run(ctx context.Context, task driver.Task, mounts []mount.Mount) (driver.Status, error) {
	if err := os.MkdirAll(task.LogDir, 0o700); err != nil {
		return driver.Status{}, fmt.Errorf("make the log folder of task %s: %w", task.ID, err)
	}
	log := d.logURI(task)
	service := d.client.TaskService()
	_, err := service.Create(ctx, &tasks.CreateTaskRequest{
		ContainerID: task.ID,
		Rootfs:      mount.ToProto(mounts),
		Stdout:      log,
		Stderr:      log,
	})
	if err != nil {
		return driver.Status{}, runError(task, err)
	}
	process, err := service.Start(ctx, &tasks.StartRequest{ContainerID: task.ID})
	if err != nil {
		return driver.Status{}, runError(task, err)
	}
	status := driver.Status{
		ID: task.ID, Labels: task.Labels, State: driver.StateRunning, PID: int(process.Pid), StartedAt: time.Now(),
	}
	return status, d.records.write(task.ID, record{StartedAt: status.StartedAt})
}

func (d *Driver) logURI(task driver.Task) string {
	limits := logfile.Limits{
		MaxFileBytes: task.Logs.MaxFileBytes,
		MaxFiles:     task.Logs.MaxFiles,
		MaxAge:       task.Logs.MaxAge,
	}
	if d.opts.embedded() {
		return logfile.URI(task.LogDir, limits)
	}
	return logfile.BinaryURI(d.shim, task.LogDir, limits)
}

// runError distinguishes a task that can never run from a problem of the machine. runc has
// no error codes for it, only sentences.
func runError(task driver.Task, err error) error {
	err = native(err)
	for _, hopeless := range []string{"unable to start container process: exec:", "chdir to cwd", "exec format error"} {
		if strings.Contains(err.Error(), hopeless) {
			return fmt.Errorf("start task %s: %w: %w", task.ID, driver.ErrInvalid, err)
		}
	}
	if errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("start task %s: containerd has one of that name: %w", task.ID, err)
	}
	return fmt.Errorf("start task %s: %w", task.ID, err)
}
