package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
)

// recoverTasks completes what a crash of an earlier run has left unfinished. Tasks go on;
// processes that Exec has started in them end together with their caller. Nothing else uses
// the driver meanwhile.
func (d *Driver) recoverTasks(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, undoTime)
	defer cancel()
	all, err := d.client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, container := range all {
		if err := d.completeRecord(ctx, container); err != nil {
			return err
		}
	}
	return d.endExecs(ctx, all)
}

// completeRecord writes the missing record of a started task. Without it, the task would
// seem never to have been started as soon as its shim is gone.
func (d *Driver) completeRecord(ctx context.Context, container containers.Container) error {
	if _, err := d.records.read(container.ID); !errors.Is(err, os.ErrNotExist) {
		return nil // a damaged one is reported when it is needed
	}
	first, err := d.process(ctx, container.ID)
	if err != nil || first == nil || first.Process.Status == tasktypes.Status_CREATED {
		return err
	}
	return d.records.write(container.ID, record{StartedAt: container.CreatedAt})
}

// endExecs ends the processes that an earlier run has started by Exec. Their pipes identify
// them: those are created first and removed last.
func (d *Driver) endExecs(ctx context.Context, all []containers.Container) error {
	entries, err := os.ReadDir(d.opts.fifoDir())
	if err != nil {
		return fmt.Errorf("look for left-over processes: %w", err)
	}
	for _, entry := range entries {
		task := entry.Name()
		if !slices.ContainsFunc(all, func(c containers.Container) bool { return c.ID == task }) {
			err = os.RemoveAll(d.opts.pipeDir(task))
		} else {
			err = d.endExecsOf(ctx, task)
		}
		if err != nil { // other tasks must still work
			d.opts.Log.Warn("Cannot end the processes that an earlier run has started in a task by exec.", "task", task, "error", err)
		}
	}
	return nil
}

func (d *Driver) endExecsOf(ctx context.Context, task string) error {
	entries, err := os.ReadDir(d.opts.pipeDir(task))
	if len(entries) == 0 || err != nil {
		return err
	}
	left := make([]*leftExec, 0, len(entries))
	for _, entry := range entries {
		l := &leftExec{process: process{driver: d, task: task}, dir: filepath.Join(d.opts.pipeDir(task), entry.Name())}
		l.drain()
		left = append(left, l)
	}
	err = d.killExecs(ctx, task)
	for _, l := range left {
		d.work.Go(l.forget)
	}
	return err
}

// killExecs kills the processes that exec has started in a task. The shim cannot be
// asked for them: it does not know those that it was just starting when the daemon
// was killed.
func (d *Driver) killExecs(ctx context.Context, task string) error {
	reply, err := d.process(ctx, task)
	if err != nil || reply == nil || reply.Process.Status == tasktypes.Status_STOPPED {
		return err
	}
	first := int(reply.Process.Pid)
	shim, err := parentOf(first)
	if shim == 0 || err != nil {
		return err
	}
	inside := func() ([]int, error) { return d.cgroups.pids(d.cgroupPath(task)) }
	pids, err := inside()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		err := killIf(pid, func() (bool, error) {
			if exec, err := startedByExec(pid, first, shim); !exec || err != nil {
				return false, err
			}
			now, err := inside()
			return slices.Contains(now, pid), err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// startedByExec reports whether a process of a task was started by exec. The parent of such a process is the shim or,
// until the start is complete, the runtime that the shim has called. All others descend from the first process.
func startedByExec(pid, first, shim int) (bool, error) {
	parent, err := parentOf(pid)
	if pid == first || parent == first || err != nil {
		return false, err
	}
	if parent == shim {
		return true, nil
	}
	runtime := parent
	parent, err = parentOf(runtime)
	return parent == shim, err
}

// leftExec is a process of an earlier run. Only its pipes are known.
type leftExec struct {
	process        // without streams
	dir     string // of its pipes
	pipes   []*os.File
	readers sync.WaitGroup
}

// stdoutPipe is containerd's name for the pipe that every process has.
const stdoutPipe = "-stdout"

// drain reads the pipes until forget is done. The shim waits for a reader of the last
// output and, while it starts a process, for any reader at all; a stock shim answers
// nothing meanwhile.
func (l *leftExec) drain() {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return // forget will fail for the same reason, and says so
	}
	for _, entry := range entries {
		if id, found := strings.CutSuffix(entry.Name(), stdoutPipe); found {
			l.id = id
		}
		// Non-blocking: opening does not wait, and closing ends a read.
		pipe, err := os.OpenFile(filepath.Join(l.dir, entry.Name()), os.O_RDWR|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		l.pipes = append(l.pipes, pipe)
		l.readers.Go(func() { _, _ = io.Copy(io.Discard, pipe) })
	}
}

// forget lets the shim forget the process and removes its pipes.
func (l *leftExec) forget() {
	ctx, cancel := context.WithTimeout(l.driver.closed, 2*killTime)
	defer cancel()
	err := l.end(ctx)
	if err == nil {
		err = os.RemoveAll(l.dir)
	}
	if err != nil && l.driver.closed.Err() == nil {
		l.driver.opts.Log.Warn("A process that was started in a task by exec cannot be cleared away.", "task", l.task, "error", err)
	}
	for _, pipe := range l.pipes {
		_ = pipe.Close()
	}
	l.readers.Wait()
}

// end ends what the shim knows of the process.
func (l *leftExec) end(ctx context.Context) error {
	if l.id == "" {
		return nil // it was never started
	}
	service := l.driver.client.TaskService()
	reply, err := service.Get(ctx, &tasks.GetRequest{ContainerID: l.task, ExecID: l.id})
	if err = native(err); errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a process in task %s: %w", l.task, err)
	}
	if reply.Process.Status == tasktypes.Status_RUNNING {
		if err := l.signal(ctx, syscall.SIGKILL); err != nil {
			return err
		}
		_, err := service.Wait(ctx, &tasks.WaitRequest{ContainerID: l.task, ExecID: l.id})
		if err = absent(native(err)); err != nil {
			return fmt.Errorf("wait for a killed process in task %s: %w", l.task, err)
		}
	}
	return l.delete(ctx)
}
