package stream

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
)

type execFlags struct {
	interactive, terminal  bool
	replica, user, workdir string
	env                    []string
}

// Exec is the command exec.
func Exec(e *command.Env) *cobra.Command {
	c := commands{e}
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND [ARG...]",
		Short: "Run a command inside a replica",
		Long: "Exec runs a command inside a running replica. NAME is a replica, or a workload to use any of its replicas.\n" +
			"The exit code is that of the command, 127 if the command does not exist in the replica, and 126 if it is not\n" +
			"executable. Without a terminal, signals are forwarded to the command.",
		Example: "  cloudless exec -it web -- sh\n  cloudless exec web -- cat /etc/hosts\n  cloudless exec web-8d996b73 -- ps\n  tar c . | cloudless exec -i web -- tar x -C /tmp",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0 || cmd.ArgsLenAtDash() == 0:
				return command.Usagef(cmd, "NAME is missing: %s", cmd.UseLine())
			case cmd.ArgsLenAtDash() > 1:
				return command.Usagef(cmd, "%q is too much: write the command after --", args[1])
			case len(args) == 1 || args[1] == "":
				return command.Usagef(cmd, "COMMAND is missing: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			env, err := command.ParsePairs("environment variable", f.env, os.LookupEnv)
			if err != nil {
				return command.Usagef(cmd, "%w", err)
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error {
				return c.exec(ctx, cmd, cl, f, client.ExecOptions{
					Namespace: c.Namespace, Workload: args[0], Replica: f.replica, Command: args[1:],
					Env: env, WorkingDir: f.workdir, User: f.user,
					Terminal: f.terminal, Stdout: c.Stdout, Stderr: c.Stderr,
				})
			})(cmd, args)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.interactive, "interactive", "i", false, "forward standard input to the command")
	flags.BoolVarP(&f.terminal, "terminal", "t", false, "give the command a terminal")
	flags.StringVar(&f.replica, "replica", "", "run in this `replica` (default: any running one)")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `KEY=VALUE`, or KEY to copy it from here; may be repeated")
	flags.StringVar(&f.user, "user", "", "`user` to run as")
	flags.StringVar(&f.workdir, "workdir", "", "working `folder`")
	return cmd
}

func (c *commands) exec(ctx context.Context, cmd *cobra.Command, cl *client.Client, f execFlags, options client.ExecOptions) error {
	if f.interactive {
		options.Stdin = c.Stdin
	}
	raw := false
	if f.terminal {
		screen := c.screen()
		if screen == nil {
			return command.Usagef(cmd, "there is no terminal here to connect with -t: leave -t out")
		}
		stopResize := attachScreen(screen, &options)
		defer stopResize()
		raw = f.interactive
	}
	if raw {
		restore, err := terminal.MakeRaw(c.Stdin)
		if err != nil {
			return command.Usagef(cmd, "%w", err)
		}
		defer restore()
	} else {
		// Once the command runs, interrupts go to the command.
		var cancel context.CancelCauseFunc
		interrupt := ctx
		ctx, cancel = context.WithCancelCause(context.WithoutCancel(ctx))
		defer cancel(nil)
		release := context.AfterFunc(interrupt, func() { cancel(context.Cause(interrupt)) })
		defer release()
		signals, stop := forwardedSignals()
		defer stop()
		options.Signals = signals
		options.Started = func(string) { release() }
	}
	code, err := cl.Exec(ctx, options)
	if code != 0 {
		return command.Exit(code, err)
	}
	return err
}

// screen is the user's terminal, nil if there is none.
func (c *commands) screen() *os.File {
	for _, stream := range []any{c.Stdin, c.Stdout} {
		if f, ok := stream.(*os.File); ok && terminal.IsTerminal(f) {
			return f
		}
	}
	return nil
}

// attachScreen gives the command a terminal like this one, and forwards changes of its size until stop is called.
func attachScreen(screen *os.File, options *client.ExecOptions) (stop func()) {
	options.Size = sizeOf(screen)
	if kind := os.Getenv("TERM"); kind != "" {
		env := map[string]string{"TERM": kind}
		for key, value := range options.Env {
			env[key] = value
		}
		options.Env = env
	}
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	sizes := make(chan client.TerminalSize)
	options.Resize = sizes
	return terminal.RelaySignals(changed, func(_ os.Signal, done <-chan struct{}) {
		select {
		case sizes <- sizeOf(screen):
		case <-done:
		}
	})
}

func sizeOf(screen *os.File) client.TerminalSize {
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil || width < 0 || height < 0 || width > 65535 || height > 65535 {
		return client.TerminalSize{}
	}
	return client.TerminalSize{Width: uint16(width), Height: uint16(height)}
}

// forwardedSignals are the names of the signals that this process receives until stop is called.
func forwardedSignals() (names <-chan string, stop func()) {
	received := make(chan os.Signal, 16)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	out := make(chan string)
	return out, terminal.RelaySignals(received, func(s os.Signal, done <-chan struct{}) {
		number, _ := s.(syscall.Signal)
		select {
		case out <- unix.SignalName(number):
		case <-done:
		}
	})
}
