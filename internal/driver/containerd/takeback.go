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

// takeBack puts right what a crash of an earlier run has left unfinished. Tasks
// go on as they are; processes in them that were started by Exec end with the
// one who asked for them. Nothing else uses the driver meanwhile.
func (d *Driver) takeBack(ctx context.Context) error {
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

// completeRecord writes the record of a task that was started and whose record
// was not written any more. Without it the task would seem never to have been
// started as soon as its shim is gone.
func (d *Driver) completeRecord(ctx context.Context, container containers.Container) error {
	if _, err := d.records.read(container.ID); !errors.Is(err, os.ErrNotExist) {
		return nil // a damaged one is told by whoever needs it
	}
	first, err := d.process(ctx, container.ID)
	if err != nil || first == nil || first.Process.Status == tasktypes.Status_CREATED {
		return err
	}
	return d.records.write(container.ID, record{StartedAt: container.CreatedAt})
}

// endExecs ends the processes that an earlier run has started by Exec. Their
// pipes tell of them: those are made first and taken away last.
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
		if err != nil {
			return fmt.Errorf("look for left-over processes in task %s: %w", task, err)
		}
	}
	return nil
}

func (d *Driver) endExecsOf(ctx context.Context, task string) error {
	entries, err := os.ReadDir(d.opts.pipeDir(task))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		left := &leftExec{process: process{driver: d, task: task}, dir: filepath.Join(d.opts.pipeDir(task), entry.Name())}
		pipes, err := filepath.Glob(filepath.Join(left.dir, "*"+stdoutPipe))
		if err != nil {
			return err
		}
		if len(pipes) > 0 {
			left.id = strings.TrimSuffix(filepath.Base(pipes[0]), stdoutPipe)
			if err := left.kill(ctx); err != nil {
				d.opts.Log.Warn("A process that was started in a task by exec and that nobody waits for does not end.", "task", task, "error", err)
				continue
			}
		}
		d.work.Go(left.forget)
	}
	return nil
}

// stdoutPipe is how containerd's client names the pipe that every process has.
const stdoutPipe = "-stdout"

// leftExec is a process of an earlier run, of which only the pipes are known.
type leftExec struct {
	process        // without streams
	dir     string // of its pipes
}

// kill returns when the process is dead.
func (l *leftExec) kill(ctx context.Context) error {
	service := l.driver.client.TaskService()
	reply, err := service.Get(ctx, &tasks.GetRequest{ContainerID: l.task, ExecID: l.id})
	if err = native(err); errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for a process in task %s: %w", l.task, err)
	}
	if status := reply.Process.Status; status == tasktypes.Status_CREATED || status == tasktypes.Status_STOPPED {
		return nil
	}
	if err := l.signal(ctx, syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	_, err = service.Wait(ctx, &tasks.WaitRequest{ContainerID: l.task, ExecID: l.id})
	if err = absent(native(err)); err != nil {
		return fmt.Errorf("wait for a killed process in task %s: %w", l.task, err)
	}
	return nil
}

// forget lets the shim forget the process, which takes a while if a child of it
// still holds the pipes, and takes the pipes away.
func (l *leftExec) forget() {
	ctx, cancel := context.WithTimeout(l.driver.closed, 2*killTime)
	defer cancel()
	defer l.drain()()
	var err error
	if l.id != "" {
		err = l.delete(ctx)
	}
	if err == nil {
		err = os.RemoveAll(l.dir)
	}
	if err != nil && l.driver.closed.Err() == nil {
		l.driver.opts.Log.Warn("A process that was started in a task by exec cannot be cleared away.", "task", l.task, "error", err)
	}
}

// drain reads the pipes until the returned function is called: the shim waits
// for its last words to be taken.
func (l *leftExec) drain() (end func()) {
	var readers sync.WaitGroup
	var pipes []*os.File
	for _, suffix := range []string{stdoutPipe, "-stderr"} {
		// Without blocking: opening waits for nobody, and closing ends a read.
		pipe, err := os.OpenFile(filepath.Join(l.dir, l.id+suffix), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue // it has none
		}
		pipes = append(pipes, pipe)
		readers.Go(func() { _, _ = io.Copy(io.Discard, pipe) })
	}
	return func() {
		for _, pipe := range pipes {
			_ = pipe.Close()
		}
		readers.Wait()
	}
}
