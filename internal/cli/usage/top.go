package usage

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

// Top is the command cloudless top.
func Top(e *command.Env) *cobra.Command {
	var sort string
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch nodes and replicas, with plots",
		Long: "Top fills the terminal with what nodes and replicas use and have used in the last minute.\n" +
			"Keys: c sorts by CPU, m by memory, q ends it.",
		Example: "  cloudless top\n  cloudless top --sort memory",
		Args:    command.ExactArgs(),
		RunE: func(cmd *cobra.Command, args []string) error {
			by, err := parseOrder(sort)
			if err != nil {
				return command.Usagef(cmd, "%w", err)
			}
			screen, ok := e.Stdout.(*os.File)
			if !ok || !terminal.IsTerminal(screen) || !e.ForPeople() {
				return command.Usagef(cmd, "top needs a terminal: elsewhere use cloudless stats")
			}
			return e.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				return command.Interruptible(ctx, top(ctx, e.Stdin, cl, screen, by))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&sort, "sort", string(byCPU), "`order` of replicas: cpu or memory")
	return cmd
}

// top shows frames until the user quits, and always restores the terminal.
func top(ctx context.Context, stdin io.Reader, cl *client.Client, screen *os.File, by order) error {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	stream, err := cl.Workloads().WatchUsage(ctx, &cloudlessv1.GetUsageRequest{})
	if err != nil {
		return err
	}
	frames, failed := make(chan *cloudlessv1.Usage), make(chan error, 1)
	go func() { failed <- receiveFrames(ctx, stream.Recv, frames) }() // ends with ctx
	first, err := nextFrame(frames, failed)                           // before it takes the screen, so that an error stays readable
	if err != nil {
		return err
	}
	release, redraw, sorted, err := takeScreen(stdin, screen, by, quit)
	if err != nil {
		return err
	}
	defer release()
	view := newTopView(terminal.StyleFor(screen))
	paper := terminal.NewCanvas(screen, true)
	view.see(first)
	for {
		width, _ := paper.Size()
		if err := paper.Draw(view.lines(width, sorted.Load().(order), time.Now())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case frame := <-frames:
			view.see(frame)
		case <-redraw:
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

func receiveFrames(ctx context.Context, receive func() (*cloudlessv1.Usage, error), frames chan<- *cloudlessv1.Usage) error {
	for {
		frame, err := receive()
		if errors.Is(err, io.EOF) {
			return errors.New("the cluster has ended the stream: start top again")
		}
		if err != nil {
			return err
		}
		select {
		case frames <- frame:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func nextFrame(frames <-chan *cloudlessv1.Usage, failed <-chan error) (*cloudlessv1.Usage, error) {
	select {
	case frame := <-frames:
		return frame, nil
	case err := <-failed:
		return nil, err
	}
}

// takeScreen takes the whole screen and every key until it is released. It signals redraw when the picture may differ.
func takeScreen(stdin io.Reader, screen *os.File, by order, quit func()) (release func(), redraw chan struct{}, sorted *atomic.Value, err error) {
	redraw, sorted = make(chan struct{}, 1), &atomic.Value{}
	sorted.Store(by)
	again := func() {
		select {
		case redraw <- struct{}{}:
		default:
		}
	}
	var undo []func()
	release = func() {
		for i := len(undo) - 1; i >= 0; i-- {
			undo[i]()
		}
	}
	if f, ok := stdin.(*os.File); ok && terminal.IsTerminal(f) {
		restore, err := terminal.MakeRaw(f)
		if err != nil {
			return nil, nil, nil, err
		}
		undo = append(undo, restore)
		stop, err := terminal.ReadKeys(f, func(key byte) {
			switch key {
			case 'q', 'Q', 3: // ctrl-C, which is no signal on a raw terminal
				quit()
			case 'c', 'C':
				sorted.Store(byCPU)
				again()
			case 'm', 'M':
				sorted.Store(byMemory)
				again()
			}
		})
		if err != nil {
			release()
			return nil, nil, nil, err
		}
		undo = append(undo, stop)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	undo = append(undo, terminal.RelaySignals(resized, func(os.Signal, <-chan struct{}) { again() }))
	if err := terminal.EnterFullScreen(screen); err != nil {
		release()
		return nil, nil, nil, err
	}
	undo = append(undo, func() { terminal.LeaveFullScreen(screen) })
	return release, redraw, sorted, nil
}
