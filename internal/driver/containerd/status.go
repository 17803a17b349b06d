package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/cloudless/cloudless/internal/driver"
)

// The driver's own labels on a container. Labels of the task's owner have the prefix.
const (
	labelOwner = "cloudless.owner/"
	labelBoot  = "cloudless.boot"        // the boot in which the task was created
	labelStop  = "cloudless.stop-signal" // the image's own
)

func native(err error) error {
	if err == nil {
		return nil
	}
	return errgrpc.ToNative(err)
}

// container returns the task's container, or driver.ErrNotFound.
func (d *Driver) container(ctx context.Context, id string) (containers.Container, error) {
	container, err := d.client.ContainerService().Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return containers.Container{}, fmt.Errorf("task %s: %w", id, driver.ErrNotFound)
	}
	if err != nil {
		return containers.Container{}, fmt.Errorf("look for the container of task %s: %w", id, err)
	}
	return container, nil
}

// status combines what the container, the shim and the record know.
func (d *Driver) status(ctx context.Context, container containers.Container) (driver.Status, error) {
	status := driver.Status{ID: container.ID, Labels: ownerLabels(container.Labels)}
	reply, err := d.process(ctx, container.ID)
	if err != nil {
		return driver.Status{}, err
	}
	var exit driver.Exit
	switch {
	case reply == nil:
		exit, err = d.lostExit(container)
		if errors.Is(err, errNeverStarted) {
			status.State = driver.StateCreated
			return status, nil
		}
		status.State, status.Exit = driver.StateExited, &exit
	case reply.Process.Status == tasktypes.Status_CREATED:
		status.State = driver.StateCreated
		return status, nil
	case reply.Process.Status == tasktypes.Status_STOPPED:
		exit, err = d.seenExit(container.ID, reply.Process.ExitStatus, reply.Process.ExitedAt.AsTime())
		status.State, status.Exit = driver.StateExited, &exit
	default:
		status.State, status.PID = driver.StateRunning, int(reply.Process.Pid)
	}
	if err != nil {
		return driver.Status{}, err
	}
	status.StartedAt, err = d.startedAt(container)
	return status, err
}

// startedAt is when the task was started. Without a record, because of a crash, the
// creation of the container is close enough.
func (d *Driver) startedAt(container containers.Container) (time.Time, error) {
	rec, err := d.records.read(container.ID)
	if errors.Is(err, os.ErrNotExist) {
		return container.CreatedAt, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return rec.StartedAt, nil
}

func ownerLabels(labels map[string]string) map[string]string {
	owner := map[string]string{}
	for key, value := range labels {
		if name, ok := strings.CutPrefix(key, labelOwner); ok {
			owner[name] = value
		}
	}
	return owner
}
