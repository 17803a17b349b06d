package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// Forward is the command forward.
func Forward(e *command.Env) *cobra.Command {
	c := commands{e}
	var address, replica string
	cmd := &cobra.Command{
		Use:   "forward NAME [LOCAL:]PORT...",
		Short: "Forward local ports to a replica",
		Long: "Forward listens on ports of this machine and connects each connection with a TCP port inside a replica. The\n" +
			"connections go through the API, so it works from everywhere, and the port need not be in the workload's ports.\n" +
			"NAME is a replica, or a workload to use one of its replicas: if that one ends, new connections go to another.\n\n" +
			"Without LOCAL, the local port has the same number. :PORT uses any free local port. Forward runs until it is\n" +
			"interrupted.",
		Example: "  cloudless forward web 9000:8080\n  cloudless forward db :5432\n  cloudless forward web-8d996b73 8080 9090:9091\n" +
			"  cloudless forward web 9000:8080 --address 0.0.0.0",
		Args: func(cmd *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return command.Usagef(cmd, "NAME is missing: %s", cmd.UseLine())
			case 1:
				return command.Usagef(cmd, "PORT is missing: %s", cmd.UseLine())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var ports []portPair
			for _, text := range args[1:] {
				p, err := parsePorts(text)
				if err != nil {
					return command.Usagef(cmd, "%w", err)
				}
				ports = append(ports, p)
			}
			return c.WithClient(func(ctx context.Context, cl *client.Client, _ *cobra.Command, _ []string) error {
				f := &forwarder{
					commands: c, client: cl, workload: args[0],
					options: client.ForwardOptions{Namespace: c.Namespace, Workload: args[0], Replica: replica},
				}
				return command.Interruptible(ctx, f.run(ctx, address, ports))
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "local `address` to listen on")
	cmd.Flags().StringVar(&replica, "replica", "", "forward to this `replica` (default: any running one)")
	return cmd
}

// portPair is a local port, 0 for any free one, and the port inside the replica.
type portPair struct{ local, inside uint16 }

func parsePorts(text string) (p portPair, err error) {
	local, inside, two := strings.Cut(text, ":")
	if !two {
		inside = local
	}
	if local != "" {
		if p.local, err = parsePort(text, local); err != nil {
			return p, err
		}
	}
	p.inside, err = parsePort(text, inside)
	return p, err
}

func parsePort(whole, text string) (uint16, error) {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%q is not of the form LOCAL:PORT, such as 9000:8080, with ports from 1 to 65535", whole)
	}
	return uint16(port), nil
}

// forwarder forwards the ports of one command.
type forwarder struct {
	commands
	client   *client.Client
	workload string // or replica, as the user has named it
	options  client.ForwardOptions

	mu      sync.Mutex
	current string // the replica that connections go to
}

// run forwards until ctx ends or a listener fails.
func (f *forwarder) run(ctx context.Context, address string, ports []portPair) error {
	f.options.Port = ports[0].inside
	target, err := f.client.ForwardTarget(ctx, f.options)
	if err != nil {
		return err
	}
	f.current = target
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var listeners []net.Listener
	for _, p := range ports {
		listener, err := f.listen(ctx, address, p)
		if err != nil {
			return errors.Join(err, closeAll(listeners))
		}
		listeners = append(listeners, listener)
	}
	var work sync.WaitGroup
	for i, listener := range listeners {
		if err := f.announce(listener, ports[i]); err != nil {
			cancel(err)
		}
		work.Go(func() {
			if err := f.accept(ctx, listener, ports[i], &work); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	_ = closeAll(listeners)
	work.Wait()
	return context.Cause(ctx)
}

func closeAll(listeners []net.Listener) (err error) {
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	return err
}

func (f *forwarder) listen(ctx context.Context, address string, p portPair) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(int(p.local))))
	other := spec.Hint(f.Namespace, fmt.Sprintf("cloudless forward %s :%d", f.workload, p.inside))
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, fmt.Errorf("local port %d is in use: choose another, or any free one with: %s", p.local, other)
	case errors.Is(err, unix.EACCES):
		return nil, fmt.Errorf("local port %d needs more rights than you have: choose one above 1023, or any free one with: %s", p.local, other)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%s is not an address of this machine: choose another with --address", address)
	}
	return listener, err
}

// announce says where a listener leads to.
func (f *forwarder) announce(listener net.Listener, p portPair) error {
	local := listener.Addr().String()
	if f.ForPeople() {
		return f.Printf("forwarding %s to port %d of replica %s\n", local, p.inside, terminal.Plain(f.current))
	}
	item, err := structpb.NewStruct(map[string]any{"local": local, "port": int(p.inside), "replica": f.current})
	if err != nil {
		return err
	}
	return f.PrintItem(item)
}

// accept forwards the connections of a listener, each by itself.
func (f *forwarder) accept(ctx context.Context, listener net.Listener, p portPair, work *sync.WaitGroup) error {
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept connections on %s: %w", listener.Addr(), err)
		}
		work.Go(func() { f.forward(ctx, conn.(*net.TCPConn), p.inside) })
	}
}

// forward connects one connection. A failure concerns only this connection: the next one may succeed.
func (f *forwarder) forward(ctx context.Context, conn *net.TCPConn, port uint16) {
	o := f.options
	o.Port, o.Started = port, f.started
	f.mu.Lock()
	o.Prefer = f.current
	f.mu.Unlock()
	err := f.client.Forward(ctx, o, conn)
	if err != nil {
		_ = conn.SetLinger(0) // a reset: the program must not take it for an orderly end
	}
	_ = conn.Close()
	if err != nil && ctx.Err() == nil && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.EPIPE) {
		f.note("cloudless: connection to port %d: %s", port, client.Message(err))
	}
}

// started notes the replica of a new connection.
func (f *forwarder) started(replica string) {
	f.mu.Lock()
	before := f.current
	f.current = replica
	f.mu.Unlock()
	if before != replica {
		f.note("cloudless: %s is gone: new connections go to replica %s", before, replica)
	}
}

// note writes a line to standard error. Connections do so at the same time.
func (f *forwarder) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Note("%s", terminal.Plain(fmt.Sprintf(format, args...)))
}
