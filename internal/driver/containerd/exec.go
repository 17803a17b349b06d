package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cloudless/cloudless/internal/driver"
)

// Exec runs another process in the task. It has the task's own user, environment and rights
// unless exec says otherwise.
func (d *Driver) Exec(ctx context.Context, id string, exec driver.Exec) (_ driver.Process, err error) {
	if len(exec.Command) == 0 || exec.Command[0] == "" {
		return nil, fmt.Errorf("exec in task %s: no command given: %w", id, driver.ErrInvalid)
	}
	if inKernel(exec.WorkingDir) {
		return nil, fmt.Errorf("exec in task %s: the working folder %q leads to the kernel and not to files: %w", id, exec.WorkingDir, driver.ErrInvalid)
	}
	container, err := d.container(ctx, id)
	if err != nil {
		return nil, err
	}
	spec, err := d.execSpec(ctx, container, exec)
	if err != nil {
		return nil, fmt.Errorf("exec in task %s: %w", id, err)
	}
	p := &process{
		driver:  d,
		task:    id,
		id:      "exec-" + strings.ToLower(rand.Text()),
		started: make(chan struct{}),
		done:    make(chan struct{}),
	}
	if err := p.start(ctx, exec, spec); err != nil {
		return nil, fmt.Errorf("exec in task %s: %w", id, err)
	}
	return p, nil
}

// execSpec describes the process, starting from the task's first one.
func (d *Driver) execSpec(ctx context.Context, container containers.Container, exec driver.Exec) (*specs.Process, error) {
	var spec oci.Spec
	if err := typeurl.UnmarshalTo(container.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the description of the container: %w", err)
	}
	process := spec.Process
	process.Args = exec.Command
	process.Env = environment(process.Env, exec.Env)
	process.Cwd = firstOf(exec.WorkingDir, process.Cwd)
	process.Terminal = exec.Terminal
	if exec.Terminal {
		if exec.Width > 0 && exec.Height > 0 {
			process.ConsoleSize = &specs.Box{Width: uint(exec.Width), Height: uint(exec.Height)}
		}
		if !slices.ContainsFunc(process.Env, func(v string) bool { return strings.HasPrefix(v, "TERM=") }) {
			process.Env = append(process.Env, "TERM=xterm")
		}
	}
	if uid, gid, ok := numericUser(exec.User); ok {
		process.User = specs.User{UID: uid, GID: gid, AdditionalGids: []uint32{gid}}
	} else if exec.User != "" {
		if _, err := d.lookupUser(ctx, exec.User, &container, &spec); err != nil {
			return nil, err
		}
	}
	return process, checkRestrictedExec(container, process)
}

// process is a process started by Exec. A goroutine of its own waits for its end, even if
// no caller does.
type process struct {
	driver  *Driver
	task    string
	id      string
	pid     int // set before started is closed
	streams cio.IO
	started chan struct{}
	done    chan struct{} // closed once code and err are set
	code    int
	err     error
}

func (p *process) start(ctx context.Context, exec driver.Exec, spec *specs.Process) (err error) {
	description, err := typeurl.MarshalAnyToProto(spec)
	if err != nil {
		return fmt.Errorf("describe the process: %w", err)
	}
	if p.streams, err = p.openStreams(exec); err != nil {
		return fmt.Errorf("open the streams: %w", err)
	}
	defer func() {
		if err != nil {
			p.streams.Cancel()
			p.streams.Close()
		}
	}()
	service, files := p.driver.client.TaskService(), p.streams.Config()
	_, err = service.Exec(ctx, &tasks.ExecProcessRequest{
		ContainerID: p.task,
		ExecID:      p.id,
		Terminal:    exec.Terminal,
		Stdin:       files.Stdin,
		Stdout:      files.Stdout,
		Stderr:      files.Stderr,
		Spec:        description,
	})
	if err != nil {
		return execError(err)
	}
	started, err := service.Start(ctx, &tasks.StartRequest{ContainerID: p.task, ExecID: p.id})
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		return errors.Join(execError(err), p.delete(undo))
	}
	p.pid = int(started.Pid)
	close(p.started)
	go p.awaitExit()
	return nil
}

func (p *process) openStreams(exec driver.Exec) (cio.IO, error) {
	var stdin io.Reader
	if exec.Stdin != nil {
		stdin = &closingReader{Reader: exec.Stdin, process: p}
	}
	stdout, stderr := exec.Stdout, exec.Stderr
	if stdout == nil {
		stdout = io.Discard
	}
	if stderr == nil {
		stderr = io.Discard
	}
	opts := []cio.Opt{cio.WithStreams(stdin, stdout, stderr), cio.WithFIFODir(p.driver.opts.pipeDir(p.task))}
	if exec.Terminal {
		opts = append(opts, cio.WithTerminal)
	}
	return cio.NewCreator(opts...)(p.id)
}

// execError distinguishes a command that cannot run from a task that does not run.
func execError(err error) error {
	err = native(err)
	switch text := err.Error(); {
	case errdefs.IsNotFound(err),
		errdefs.IsFailedPrecondition(err),
		strings.Contains(text, "cannot exec in a stopped"),
		strings.Contains(text, "process already finished"):
		return fmt.Errorf("%w: %w", driver.ErrNotRunning, err)
	case strings.Contains(text, "exec failed"):
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return err
}

// awaitExit waits for the exit and all output, and then lets the shim forget the process.
func (p *process) awaitExit() {
	defer close(p.done)
	reply, err := p.await(p.driver.closed)
	if err != nil {
		p.err = fmt.Errorf("wait for the process in task %s: %w", p.task, native(err))
		p.streams.Cancel()
	} else {
		p.code = int(reply.ExitStatus)
		ctx, cancel := context.WithTimeout(p.driver.closed, killTime)
		defer cancel()
		// The shim closes its ends of the streams, after a short wait if a child of the
		// process still holds them.
		if err := p.delete(ctx); err != nil {
			p.streams.Cancel()
		}
	}
	p.streams.Wait()
	p.streams.Cancel()
	p.streams.Close()
}

// await waits for the process, and reattaches whenever the daemon disconnects: the process
// and its streams do not notice that.
func (p *process) await(ctx context.Context) (*tasks.WaitResponse, error) {
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		reply, err := p.driver.client.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: p.task, ExecID: p.id})
		if err == nil || ctx.Err() != nil || errdefs.IsNotFound(native(err)) {
			return reply, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (p *process) delete(ctx context.Context) error {
	_, err := p.driver.client.TaskService().DeleteProcess(ctx, &tasks.DeleteProcessRequest{ContainerID: p.task, ExecID: p.id})
	return absent(native(err))
}

// Wait returns the exit code. Cancelling ctx kills the process.
func (p *process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.code, p.err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if err := p.kill(end); err != nil {
		return 0, errors.Join(ctx.Err(), err)
	}
	select {
	case <-p.done:
		return 0, ctx.Err()
	case <-end.Done():
		return 0, fmt.Errorf("the process in task %s does not die: %w", p.task, ctx.Err())
	}
}

// kill retries until ctx ends, because the daemon may be restarting and nothing else would
// end the process.
//
// The process leads a group of its own, so its children are killed with it, unless they have left the group.
func (p *process) kill(ctx context.Context) error {
	select {
	case <-p.done: // the number may be that of another process by now
		return nil
	default:
		if p.signalInside(ctx, syscall.SIGKILL) {
			return nil
		}
		if p.pid > 1 {
			_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		}
	}
	for {
		err := p.signal(ctx, syscall.SIGKILL)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-p.done:
			return nil
		case <-ctx.Done():
			return err
		}
	}
}

// Resize retries for a moment, because the terminal of a process that was just started may
// not exist yet.
func (p *process) Resize(ctx context.Context, width, height uint16) error {
	request := &tasks.ResizePtyRequest{ContainerID: p.task, ExecID: p.id, Width: uint32(width), Height: uint32(height)}
	for attempt := 1; ; attempt++ {
		_, err := p.driver.client.TaskService().ResizePty(ctx, request)
		if err == nil {
			return nil
		}
		if attempt == 10 || ctx.Err() != nil {
			return fmt.Errorf("resize the terminal in task %s: %w", p.task, native(err))
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-p.done:
			return fmt.Errorf("resize the terminal in task %s: %w", p.task, driver.ErrNotRunning)
		case <-ctx.Done():
		}
	}
}

// Signal sends a signal by name.
func (p *process) Signal(ctx context.Context, name string) error {
	sig, err := parseSignal(name)
	if err != nil {
		return fmt.Errorf("signal the process in task %s: %w", p.task, err)
	}
	return p.signal(ctx, sig)
}

func (p *process) signal(ctx context.Context, sig syscall.Signal) error {
	if p.signalInside(ctx, sig) {
		return nil
	}
	_, err := p.driver.client.TaskService().Kill(ctx, &tasks.KillRequest{ContainerID: p.task, ExecID: p.id, Signal: uint32(sig)})
	if err = absent(native(err)); err != nil {
		return fmt.Errorf("signal the process in task %s: %w", p.task, err)
	}
	return nil
}

// closingReader tells the shim when the input has ended. The shim holds the pipe open, so
// the process would not notice otherwise.
type closingReader struct {
	io.Reader
	process *process
}

func (r *closingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if err != nil {
		r.process.closeStdin()
	}
	return n, err
}

func (p *process) closeStdin() {
	select {
	case <-p.started:
	case <-p.done:
		return
	case <-p.driver.closed.Done():
		return
	}
	_, err := p.driver.client.TaskService().CloseIO(p.driver.closed, &tasks.CloseIORequest{ContainerID: p.task, ExecID: p.id, Stdin: true})
	if err = absent(native(err)); err != nil {
		p.driver.opts.Log.Debug("The input of a process could not be closed.", "task", p.task, "error", err)
	}
}
