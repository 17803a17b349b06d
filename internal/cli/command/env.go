package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// Env is what every command works with: the streams, the global flags and the connection that they choose.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Version of the program.
	Version string

	// The global flags.
	Config, Context, Namespace, output string
	// server is the address of a server; empty if the context names it.
	server string
	// began is the context as it was when the command dialled.
	began client.Context
	// Stale allows reads from a server that may be behind.
	Stale bool
	// tokenFile is the flag for an API token. Some commands have a flag of the same name for a join token.
	tokenFile *pflag.Flag
	// tokenSource says, for people, where the token of the command comes from.
	tokenSource string
	// tokenFrom is the From of the context that it comes from.
	tokenFrom string
	// tracing is nil unless the environment says where traces go.
	tracing *telemetry.Tracing
}

// ContextEnv is the environment variable that names the context to use.
const ContextEnv = "CLOUDLESS_CONTEXT"

// Dial connects to the cluster that the global flags choose.
func (e *Env) Dial(ctx context.Context) (*client.Client, error) {
	where, err := e.where(ctx)
	if err != nil {
		return nil, err
	}
	e.began = where
	if e.server != "" {
		where.Addresses = []string{e.server}
	}
	if !where.Renews {
		return e.DialContext(ctx, where)
	}
	path, err := e.ConfigPath()
	if err != nil {
		return nil, err
	}
	return client.Dial(ctx, where, client.WithDialOptions(e.tracing.DialOptions()...), client.WithTokenOf(client.TokenOf(path, where)))
}

// keepFresh renews the token of the context whenever that is due, until ctx ends: a command may run for days.
func (e *Env) keepFresh(ctx context.Context, where client.Context) {
	path, err := e.ConfigPath()
	if err != nil {
		return
	}
	for !where.RenewAt().IsZero() {
		wait := time.NewTimer(max(time.Until(where.RenewAt()), renewPause))
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
		if now, err := client.Renew(ctx, path, where.Name); err == nil {
			where = now
		}
	}
}

// renewPause is the shortest time between two attempts to renew a token.
const renewPause = 30 * time.Second

// DialContext connects to the cluster of a context.
func (e *Env) DialContext(ctx context.Context, where client.Context) (*client.Client, error) {
	return client.Dial(ctx, where, client.WithDialOptions(append(e.tracing.DialOptions(), grpc.WithChainUnaryInterceptor(e.tellWarnings))...))
}

// warningHeader is the header of an answer with what policies say of an object that they do not refuse.
const warningHeader = "cloudless-warning"

// tellWarnings shows the warnings that come with an answer.
func (e *Env) tellWarnings(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	var header metadata.MD
	err := invoke(ctx, method, req, reply, conn, append(slices.Clip(opts), grpc.Header(&header))...)
	for _, words := range header.Get(warningHeader) {
		e.Note("warning: %s", terminal.Plain(words))
	}
	return err
}

// ConfigPath is the path of the client configuration.
func (e *Env) ConfigPath() (string, error) {
	if e.Config != "" {
		return e.Config, nil
	}
	return client.ConfigPath()
}

// WithClient is the RunE of a command that calls the cluster: it connects, and closes the connection afterwards.
func (e *Env) WithClient(do func(ctx context.Context, cl *client.Client, cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		ctx := cmd.Context()
		cl, err := e.Dial(ctx)
		if err != nil {
			return err
		}
		if e.Stale {
			ctx = client.WithStale(ctx)
			e.MarkStale(cl)
		}
		renewing, stop := context.WithCancel(ctx)
		var renewal sync.WaitGroup
		renewal.Go(func() { e.keepFresh(renewing, e.began) })
		err = do(ctx, cl, cmd, args)
		stop()
		renewal.Wait()
		e.keepAddresses(cl)
		return errors.Join(err, cl.Close())
	}
}

// MarkStale notes that the output comes from one server, which may be behind.
func (e *Env) MarkStale(cl *client.Client) {
	e.Note("This is what the server at %s knows, and may be out of date.", cl.Addresses()[0])
}

// Printf writes to standard output.
func (e *Env) Printf(format string, args ...any) error {
	_, err := fmt.Fprintf(terminal.Safe(e.Stdout), format, args...)
	return err
}

// Note writes a line to standard error.
func (e *Env) Note(format string, args ...any) {
	fmt.Fprintf(terminal.Safe(e.Stderr), format+"\n", args...)
}

// errContextChanged says that another process has changed the context. That change counts.
var errContextChanged = errors.New("the context was changed meanwhile")

// keepAddresses stores the servers and the authorities that the client has learnt of in the context, so that the next
// command finds them even if all the old ones are gone. A command may have run for days: if another one has changed the context since,
// that newer change stays.
func (e *Env) keepAddresses(cl *client.Client) {
	if len(cl.Addresses()) == 0 || slices.Equal(e.began.Addresses, cl.Addresses()) && e.began.CA == cl.CA() {
		return
	}
	path, err := e.ConfigPath()
	if err != nil {
		return
	}
	err = client.UpdateConfig(path, func(config *client.Config) error {
		have, err := config.Context(e.began.Name)
		if err != nil || have.Cluster != e.began.Cluster || !slices.Equal(have.Addresses, e.began.Addresses) {
			return errContextChanged
		}
		have.Addresses = cl.Addresses()
		config.Set(have)
		for i, other := range config.Contexts {
			if other.Cluster == have.Cluster && other.CA == e.began.CA {
				config.Contexts[i].CA = cl.CA()
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, errContextChanged) {
		e.Note("the addresses of the servers could not be kept: %s", client.Message(err))
	}
}

// Interruptible makes an interrupt the ordinary end of a command that runs until it is interrupted.
func Interruptible(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
