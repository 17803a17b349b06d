package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// ExecOptions say what to run inside a replica, and its input and output.
type ExecOptions struct {
	Namespace string
	Workload  string
	// Replica is the name of the replica; any running one if empty.
	Replica string
	Command []string
	Env     map[string]string
	// WorkingDir and User are the replica's own if empty.
	WorkingDir string
	User       string

	// Terminal gives the command a terminal of the given size; then all its output goes to Stdout.
	Terminal bool
	Size     TerminalSize

	// Stdin is sent until it ends; nil means none. A pending Read does not delay the end of the command.
	Stdin io.Reader
	// Stdout and Stderr receive the output; nil discards it.
	Stdout, Stderr io.Writer

	// Resize receives new sizes of the terminal, Signals names of signals such as SIGINT. Both may be nil.
	Resize  <-chan TerminalSize
	Signals <-chan string

	// Started is called when the command runs, with the name of the replica. It may be nil.
	Started func(replica string)
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct{ Width, Height uint16 }

func (s TerminalSize) message() *cloudlessv1.TerminalSize {
	if s == (TerminalSize{}) {
		return nil
	}
	return &cloudlessv1.TerminalSize{Width: uint32(s.Width), Height: uint32(s.Height)}
}

// Exec runs a command inside a replica and returns its exit code. The error says why there is none: the command could
// not be started, or the connection to it was lost. As in shells, the code is 127 if the command does not exist and 126
// if it may not be run.
func (c *Client) Exec(ctx context.Context, options ExecOptions) (int, error) {
	if len(options.Command) == 0 {
		return 0, errors.New("exec needs a command")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Workloads().Exec(ctx)
	if err != nil {
		return 0, err
	}
	err = stream.Send(&cloudlessv1.ExecRequest{Message: &cloudlessv1.ExecRequest_Start{Start: options.start()}})
	if err != nil && !errors.Is(err, io.EOF) { // after io.EOF the reason comes from Recv
		return 0, err
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		options.send(ctx, stream)
	}()
	code, err := options.receive(stream)
	cancel()
	<-sent
	return code, err
}

func (o *ExecOptions) start() *cloudlessv1.ExecStart {
	return &cloudlessv1.ExecStart{
		Namespace:  o.Namespace,
		Workload:   o.Workload,
		Replica:    o.Replica,
		Command:    o.Command,
		Terminal:   o.Terminal,
		Size:       o.Size.message(),
		Env:        o.Env,
		WorkingDir: o.WorkingDir,
		User:       o.User,
		Stdin:      o.Stdin != nil,
	}
}

type execStream interface {
	Send(*cloudlessv1.ExecRequest) error
	Recv() (*cloudlessv1.ExecResponse, error)
}

// send forwards input, sizes and signals until ctx ends or the stream breaks. Recv says why it broke.
func (o *ExecOptions) send(ctx context.Context, stream execStream) {
	input := make(chan *cloudlessv1.ExecRequest)
	if o.Stdin != nil {
		go readInput(ctx, o.Stdin, input)
	}
	resize, signals := o.Resize, o.Signals
	for {
		var request *cloudlessv1.ExecRequest
		select {
		case request = <-input:
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			request = &cloudlessv1.ExecRequest{Message: &cloudlessv1.ExecRequest_Resize{Resize: size.message()}}
		case name, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			request = &cloudlessv1.ExecRequest{Message: &cloudlessv1.ExecRequest_Signal{Signal: name}}
		case <-ctx.Done():
			return
		}
		if stream.Send(request) != nil {
			return
		}
	}
}

// readInput sends what it reads and then the end. It ends with the input, or with the first Read after ctx has ended.
func readInput(ctx context.Context, from io.Reader, to chan<- *cloudlessv1.ExecRequest) {
	hand := func(request *cloudlessv1.ExecRequest) bool {
		select {
		case to <- request:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		buffer := make([]byte, 32<<10)
		n, err := from.Read(buffer)
		if n > 0 && !hand(&cloudlessv1.ExecRequest{Message: &cloudlessv1.ExecRequest_Stdin{Stdin: buffer[:n]}}) {
			return
		}
		if err != nil {
			hand(&cloudlessv1.ExecRequest{Message: &cloudlessv1.ExecRequest_CloseStdin{CloseStdin: true}})
			return
		}
	}
}

func (o *ExecOptions) receive(stream execStream) (int, error) {
	replica := "" // in which the command runs
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the connection to the command ended before the command did")
		}
		if err != nil {
			return 0, lostCommand(replica, err)
		}
		switch message := response.GetMessage().(type) {
		case *cloudlessv1.ExecResponse_Started:
			replica = message.Started.GetReplica()
			if o.Started != nil {
				o.Started(replica)
			}
		case *cloudlessv1.ExecResponse_Stdout:
			err = write(o.Stdout, message.Stdout)
		case *cloudlessv1.ExecResponse_Stderr:
			err = write(o.Stderr, message.Stderr)
		case *cloudlessv1.ExecResponse_Exit:
			if message.Exit.GetError() != "" {
				return int(message.Exit.GetCode()), errors.New(message.Exit.GetError())
			}
			return int(message.Exit.GetCode()), nil
		}
		if err != nil {
			return 0, fmt.Errorf("write the command's output: %w", err)
		}
	}
}

// lostCommand says what happens to a command that was already running. The plain error would sound as if it had never
// begun, and could safely be run again.
func lostCommand(replica string, err error) error {
	s := status.Convert(err)
	if replica == "" || s.Code() != codes.Unavailable {
		return err
	}
	return &callError{status: s, message: fmt.Sprintf("the connection to the command in replica %s was lost, and the command ends with it; "+
		"look how far it came before you run it again: %s", replica, s.Message())}
}

func write(to io.Writer, data []byte) error {
	if to == nil {
		return nil
	}
	_, err := to.Write(data)
	return err
}
