package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

// serveExec runs a process inside a replica. The process ends with the stream.
func (a *Agent) serveExec(ctx context.Context, at *attachment, open *v1.OpenExec) error {
	r, execer, task, err := a.execTarget(open.GetReplicaUid())
	if err != nil {
		at.listen(nil)
		return at.refuse(err)
	}
	start := open.GetStart()
	in := newInput(start.GetStdin())
	announced := make(chan struct{}) // closed when the server knows that the process runs
	process, err := execer.Exec(ctx, task, describeExec(ctx, start, in, at, announced))
	if err != nil {
		at.listen(nil)
		code, problem := execProblem(r, start, err)
		return at.exit(&v1.ExecExit{Code: code, Error: sentence(problem.Error())})
	}
	commands := make(chan *v1.ExecRequest, execBacklog)
	at.work.Go(func() { a.command(ctx, process, commands) })
	at.work.Go(func() { in.pump(ctx) })
	at.listen(func(down *v1.AttachDown) { at.dispatch(ctx, down.GetExec(), in, commands) })
	started := &v1.ExecResponse{Message: &v1.ExecResponse_Started{Started: &v1.ExecStarted{Replica: r.name()}}}
	if err := at.sendExec(started); err != nil {
		at.cancel() // kills the process, whose exit must still be awaited
		_, _ = process.Wait(ctx)
		return err
	}
	close(announced)
	code, err := process.Wait(ctx)
	if err != nil {
		return at.exit(&v1.ExecExit{Error: sentence(fmt.Sprintf("the process could not be watched: %v", err))})
	}
	return at.exit(&v1.ExecExit{Code: int32(code)})
}

// execTarget finds the running task of a replica and a driver that can exec.
func (a *Agent) execTarget(uid string) (*replica, driver.Execer, string, error) {
	r, task, err := a.runningTask(uid)
	if err != nil {
		return nil, nil, "", err
	}
	execer, able := r.driver.(driver.Execer)
	if !able {
		return nil, nil, "", fmt.Errorf("replica %s runs by driver %q, which cannot run further processes in it", r.name(), r.driver.Name())
	}
	return r, execer, task, nil
}

// The exit codes of shells for commands that cannot be run, and that do not exist.
const (
	exitCannotRun = 126
	exitNotFound  = 127
)

// execProblem returns a short error and exit code for the commonest mistakes, because the
// errors of drivers are long.
func execProblem(r *replica, start *v1.ExecStart, err error) (code int32, problem error) {
	command := start.GetCommand()
	switch text := err.Error(); {
	case errors.Is(err, driver.ErrNotRunning):
		return 0, fmt.Errorf("replica %s does not run any more; see: %s", r.name(), spec.Hint(start.GetNamespace(), "cloudless ps --all"))
	case !errors.Is(err, driver.ErrInvalid) || len(command) == 0:
		return 0, err
	case strings.Contains(text, fmt.Sprintf("user %q does not exist", start.GetUser())):
		return 0, fmt.Errorf("user %q does not exist in replica %s: an image knows the users in its /etc/passwd, and maybe none; say a number such as 1000:1000", start.GetUser(), r.name())
	case strings.Contains(text, "chdir to cwd"):
		return exitCannotRun, fmt.Errorf("folder %q in replica %s is not one that its user may work in, or does not exist", start.GetWorkingDir(), r.name())
	case strings.Contains(text, "no such file or directory"), strings.Contains(text, "executable file not found"):
		return exitNotFound, fmt.Errorf("command %q does not exist in replica %s: an image has the programs that were put into it, and maybe no shell", command[0], r.name())
	case strings.Contains(text, "permission denied"):
		return exitCannotRun, fmt.Errorf("command %q in replica %s is not a program that its user may run", command[0], r.name())
	}
	return 0, err
}

// describeExec connects the process with the stream. Its output waits until the server
// knows that the process runs.
func describeExec(ctx context.Context, start *v1.ExecStart, in *input, at *attachment, announced <-chan struct{}) driver.Exec {
	send := func(response *v1.ExecResponse) error {
		select {
		case <-announced:
			return at.sendExec(response)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	exec := driver.Exec{
		Command:    start.GetCommand(),
		Env:        start.GetEnv(),
		WorkingDir: start.GetWorkingDir(),
		User:       start.GetUser(),
		Terminal:   start.GetTerminal(),
		Width:      uint16(start.GetSize().GetWidth()),
		Height:     uint16(start.GetSize().GetHeight()),
		Stdout: output(func(b []byte) error {
			return send(&v1.ExecResponse{Message: &v1.ExecResponse_Stdout{Stdout: b}})
		}),
		Stderr: output(func(b []byte) error {
			return send(&v1.ExecResponse{Message: &v1.ExecResponse_Stderr{Stderr: b}})
		}),
	}
	if in.reader != nil {
		exec.Stdin = in.reader
	}
	return exec
}

func (at *attachment) sendExec(response *v1.ExecResponse) error {
	return at.send(&v1.AttachUp{Message: &v1.AttachUp_Exec{Exec: response}})
}

func (at *attachment) exit(exit *v1.ExecExit) error {
	if err := at.sendExec(&v1.ExecResponse{Message: &v1.ExecResponse_Exit{Exit: exit}}); err != nil {
		return err
	}
	return at.finish()
}

// execBacklog is how many messages of each kind may queue for a slow process. Beyond that,
// the stream's flow control blocks the sender.
const execBacklog = 16

// dispatch sorts incoming messages. Input has its own queue, so that a process that does
// not read can still be signalled and resized.
func (at *attachment) dispatch(ctx context.Context, request *v1.ExecRequest, in *input, commands chan<- *v1.ExecRequest) {
	switch message := request.GetMessage().(type) {
	case *v1.ExecRequest_Stdin:
		if in.open && len(message.Stdin) > 0 {
			pass(ctx, at, in.chunks, message.Stdin)
		}
	case *v1.ExecRequest_CloseStdin:
		if in.open {
			in.open = false
			pass(ctx, at, in.chunks, nil)
		}
	case *v1.ExecRequest_Resize, *v1.ExecRequest_Signal:
		pass(ctx, at, commands, request)
	}
}

// probeInterval bounds how long the end of a stream goes unnoticed while a process does not
// read its input.
const probeInterval = time.Second

// pass queues value, however long the process takes to make room. Meanwhile nothing is
// received, so the end of the stream would go unnoticed. Therefore pass sends empty
// messages, which fail once the server has ended the stream.
func pass[T any](ctx context.Context, at *attachment, to chan<- T, value T) {
	probe := time.NewTicker(probeInterval)
	defer probe.Stop()
	for {
		select {
		case to <- value:
			return
		case <-ctx.Done():
			return
		case <-probe.C:
			if at.sendExec(&v1.ExecResponse{Message: &v1.ExecResponse_Stdout{}}) != nil {
				at.cancel()
				return
			}
		}
	}
}

// command resizes and signals the process until ctx ends. Failures are ignored: the process
// has usually just ended.
func (a *Agent) command(ctx context.Context, process driver.Process, commands <-chan *v1.ExecRequest) {
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case request := <-commands:
			switch message := request.GetMessage().(type) {
			case *v1.ExecRequest_Resize:
				err = process.Resize(ctx, uint16(message.Resize.GetWidth()), uint16(message.Resize.GetHeight()))
			case *v1.ExecRequest_Signal:
				err = process.Signal(ctx, message.Signal)
			}
		}
		if err != nil && ctx.Err() == nil {
			a.log.Debug("cannot signal or resize a process", "error", err)
		}
	}
}

// output is a writer that splits each write into messages of bounded size.
type output func([]byte) error

const maxChunk = 32 << 10

func (o output) Write(b []byte) (n int, err error) {
	for n < len(b) {
		chunk := b[n:min(len(b), n+maxChunk)]
		if err := o(chunk); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return n, nil
}

// input is the standard input of a process: a bounded queue of chunks, then a pipe.
type input struct {
	open   bool           // more may come; owned by the receiver
	reader *io.PipeReader // nil if the process has no input
	writer *io.PipeWriter
	chunks chan []byte // nil marks the end
}

func newInput(wanted bool) *input {
	in := &input{open: wanted, chunks: make(chan []byte, execBacklog)}
	if wanted {
		in.reader, in.writer = io.Pipe()
	}
	return in
}

// pump feeds the pipe until the end of input or of ctx. It drops what the process no longer
// reads.
func (in *input) pump(ctx context.Context) {
	if in.writer == nil {
		return
	}
	defer in.writer.Close()
	stop := context.AfterFunc(ctx, func() { in.reader.CloseWithError(context.Cause(ctx)) })
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case chunk := <-in.chunks:
			if chunk == nil {
				return
			}
			_, _ = in.writer.Write(chunk)
		}
	}
}
