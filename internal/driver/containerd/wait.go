package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	"github.com/cloudless/cloudless/internal/driver"
)

// errNeverStarted means that a task has neither a shim nor a record: because of a crash
// between its creation and its start, or before the end of its removal.
var errNeverStarted = fmt.Errorf("the task was never started: %w", driver.ErrNotRunning)

// killedBySignal9 is the exit code after SIGKILL.
const killedBySignal9 = 128 + 9

// Wait reattaches to the task whenever the daemon or the shim disconnects, until the exit
// is known or known to be lost.
func (d *Driver) Wait(ctx context.Context, id string) (driver.Exit, error) {
	container, err := d.container(ctx, id)
	if err != nil {
		return driver.Exit{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.closed, cancel)()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		reply, err := d.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
		switch {
		case err == nil:
			return d.seenExit(id, reply.ExitStatus, reply.ExitedAt.AsTime())
		case d.closed.Err() != nil:
			return driver.Exit{}, fmt.Errorf("wait for task %s: the driver was closed", id)
		case ctx.Err() != nil:
			return driver.Exit{}, fmt.Errorf("wait for task %s: %w", id, ctx.Err())
		case errdefs.IsNotFound(native(err)):
			return d.lostExit(container)
		}
		// The daemon is restarting, or the shim died and the daemon has not cleaned up
		// after it yet.
		d.opts.Log.Debug("Waiting for a task was interrupted.", "task", id, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// seenExit completes an exit that the shim reported and stores it, because the OOM counters
// disappear with the cgroup.
func (d *Driver) seenExit(id string, code uint32, at time.Time) (driver.Exit, error) {
	exit := driver.Exit{Code: int(code), At: at}
	kills, err := d.cgroups.oomKills(d.cgroupPath(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return driver.Exit{}, fmt.Errorf("see whether task %s ran out of memory: %w", id, err)
	}
	// Another process than the first may have been OOM-killed long ago; and a kill of ours
	// has the same code as one of the kernel.
	exit.OOMKilled = kills > 0 && exit.Code == killedBySignal9
	err = d.records.change(id, func(rec *record) {
		if rec.Exit != nil {
			exit = *rec.Exit
			return
		}
		exit.OOMKilled = exit.OOMKilled && !rec.Killed
		exit.ChildOOMKilled = kills > 0 && exit.Code != 0 && !exit.OOMKilled && !rec.Killed
		rec.Exit = &exit
	})
	return exit, err
}

// lostExit is the exit of a task without a shim. It kills the remaining processes, so that
// the task has really ended.
func (d *Driver) lostExit(container containers.Container) (driver.Exit, error) {
	id := container.ID
	exit := driver.Exit{
		Code:   killedBySignal9,
		At:     time.Now(),
		Reason: "the task's supervisor was killed, and the task with it",
	}
	sameBoot := container.Labels[labelBoot] == d.bootID
	if !sameBoot {
		exit.Reason = "the machine was restarted while the task ran"
	}
	rec, err := d.records.read(id)
	switch {
	case errors.Is(err, os.ErrNotExist) && sameBoot:
		return driver.Exit{}, fmt.Errorf("task %s: %w", id, errNeverStarted)
	case errors.Is(err, os.ErrNotExist):
		rec = &record{StartedAt: container.CreatedAt}
	case err != nil:
		return driver.Exit{}, err
	case rec.Exit != nil:
		return *rec.Exit, nil
	}
	if err := d.cgroups.kill(d.cgroupPath(id)); err != nil {
		return driver.Exit{}, fmt.Errorf("kill what is left of task %s: %w", id, err)
	}
	rec.Exit = &exit
	return exit, d.records.write(id, *rec)
}

// cgroupPath is the task's cgroup below the root of each hierarchy.
func (d *Driver) cgroupPath(id string) string { return d.opts.cgroupParent() + "/" + id }
