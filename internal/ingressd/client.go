package ingressd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/ingress/config"
	"github.com/cloudless/cloudless/internal/sleep"
)

// Options say how an agent reaches its ingress process.
type Options struct {
	// Dir holds the socket of the process, such as /run/cloudless/ID.
	Dir string
	// LogDir holds the log of the process and the access log.
	LogDir string
	// Program returns the path of the program. A running process of another program is replaced by this one.
	Program func() (path string, err error)
	// Launcher is the beginning of the command that starts the program, such as sudo. It may be empty.
	Launcher []string
	Log      *slog.Logger
}

// Client is the agent's side. It keeps the process running, and gives it again what it has forgotten.
type Client struct {
	opts    Options
	program string
	cancel  context.CancelFunc
	ended   chan struct{}
	wake    chan struct{} // has a token if there is something to send
	reports chan *v1.IngressUp
	heard   chan struct{} // has a token if there is something to report

	mu      sync.Mutex
	config  config.Config
	pending []*v1.IngressDown // what the connected process does not know yet
	up      *v1.IngressUp     // what nobody has taken yet
}

// Start joins the process that runs, or starts one. It fails only if there is no program. The client works until Close
// or until ctx ends, and leaves the process running.
func Start(ctx context.Context, o Options) (*Client, error) {
	if o.Program == nil {
		return nil, errors.New("the ingress process needs a program")
	}
	program, err := o.Program()
	if err != nil {
		return nil, fmt.Errorf("the program of the ingress process: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &Client{
		opts: o, program: program, cancel: cancel, ended: make(chan struct{}), wake: make(chan struct{}, 1), reports: make(chan *v1.IngressUp), heard: make(chan struct{}, 1),
	}
	go c.run(ctx) // Close waits for it
	return c, nil
}

// Send passes a message on to the process, now or when it can be reached again. The client keeps what the messages
// add up to; they must not change any more.
func (c *Client) Send(m *v1.IngressDown) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.config.Apply(m)
	if m.GetFull() || len(c.pending) >= mostPending && c.config.Known {
		c.pending = []*v1.IngressDown{c.config.Full()}
	} else {
		c.pending = append(c.pending, m)
	}
	signal(c.wake)
	return nil
}

// mostPending is how many messages wait before they are added up.
const mostPending = 64

func signal(to chan struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// Reports are the process's reports. The channel is closed when the client has ended. Reports that nobody takes are
// merged.
func (c *Client) Reports() <-chan *v1.IngressUp { return c.reports }

// Close ends the client, and leaves the process running.
func (c *Client) Close() error {
	c.cancel()
	<-c.ended
	return nil
}

// stopTime is how long a process may take to end.
const stopTime = 10 * time.Second

// Stop ends the process, and closes the client.
func (c *Client) Stop() error {
	_ = c.Close() // it never fails
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	return Stop(ctx, c.opts.Dir)
}

// Stop ends the process that listens in dir, if there is one, and returns when it is gone.
func Stop(ctx context.Context, dir string) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(dir, socketName))
	if err != nil {
		_ = os.Remove(filepath.Join(dir, stateName)) // of a process that was killed; there may be none
		return nil                                   // no process is there
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for err = write(conn, stop, nil); err == nil; {
		_, _, err = read(conn)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("the ingress process has not ended: %w", ctx.Err())
	}
	return nil
}

// retryPause is the time between two attempts to reach the process.
const retryPause = 200 * time.Millisecond

// run keeps the process running and informed until ctx ends.
func (c *Client) run(ctx context.Context) {
	defer close(c.ended)
	var delivering sync.WaitGroup
	delivering.Go(func() { c.deliver(ctx) })
	defer delivering.Wait()
	last := ""
	for ctx.Err() == nil {
		err := c.talk(ctx)
		if errors.Is(err, errReplaced) || ctx.Err() != nil {
			continue
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			c.opts.Log.Warn("no connection to the ingress process; trying again", "error", err)
		}
		_ = sleep.For(ctx, retryPause) // the loop looks at ctx
	}
}

var errReplaced = errors.New("the ingress process was replaced")

// talk has one conversation with the process.
func (c *Client) talk(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	k, name, err := read(conn)
	if err != nil || k != hello {
		return fmt.Errorf("listen to the ingress process: %w", errors.Join(err, errors.New("it does not say what it is")))
	}
	if string(name) != filepath.Base(c.program) {
		return c.replace(conn, string(name))
	}
	c.mu.Lock()
	if c.config.Known { // otherwise it keeps what it knows until this agent knows better
		c.pending = []*v1.IngressDown{c.config.Full()}
	}
	c.mu.Unlock()
	told := make(chan error, 1)
	go func() { // ends with the connection
		defer cancel()
		told <- c.tell(ctx, conn)
	}()
	err = c.listen(conn)
	cancel()
	return errors.Join(err, <-told)
}

// replace starts a process of this program, to which the running one hands over. It returns when that has happened.
func (c *Client) replace(conn net.Conn, name string) error {
	c.opts.Log.Info("the ingress process is of another version: replacing it", "version", name, "wanted", filepath.Base(c.program))
	if err := conn.SetDeadline(time.Now().Add(handOverTime)); err != nil {
		return err
	}
	if err := c.start(); err != nil {
		return err
	}
	for {
		_, _, err := read(conn)
		if isTimeout(err) {
			return fmt.Errorf("the ingress process was not replaced in time; the log is %s", c.log())
		}
		if err != nil {
			return errReplaced
		}
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// tell sends what is pending, whenever there is something. First it says that it is an agent.
func (c *Client) tell(ctx context.Context, conn net.Conn) error {
	if err := writeDown(conn, &v1.IngressDown{}); err != nil {
		return fmt.Errorf("talk to the ingress process: %w", err)
	}
	for {
		c.mu.Lock()
		next := c.pending
		c.pending = nil
		c.mu.Unlock()
		for _, m := range next {
			if err := writeDown(conn, m); err != nil {
				return fmt.Errorf("talk to the ingress process: %w", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
	}
}

func (c *Client) listen(conn net.Conn) error {
	for {
		k, content, err := read(conn)
		if err != nil {
			return fmt.Errorf("listen to the ingress process: %w", err)
		}
		m := &v1.IngressUp{}
		if k != up {
			continue
		}
		if err := proto.Unmarshal(content, m); err != nil {
			return fmt.Errorf("read a report of the ingress process: %w", err)
		}
		for _, p := range m.GetPorts() {
			nameUser(p)
		}
		c.mu.Lock()
		c.up = merge(c.up, m)
		c.mu.Unlock()
		signal(c.heard)
	}
}

// deliver gives the reports to whoever takes them.
func (c *Client) deliver(ctx context.Context) {
	defer close(c.reports)
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.heard:
		}
		c.mu.Lock()
		next := c.up
		c.up = nil
		c.mu.Unlock()
		for next != nil {
			select {
			case <-ctx.Done():
				return
			case c.reports <- next:
				next = nil
			case <-c.heard:
				c.mu.Lock()
				next = merge(next, c.up)
				c.up = nil
				c.mu.Unlock()
			}
		}
	}
}

// connect reaches the process, and starts one if there is none.
func (c *Client) connect(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	socket := filepath.Join(c.opts.Dir, socketName)
	if conn, err := d.DialContext(ctx, "unix", socket); err == nil {
		return conn, nil
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	for range 100 {
		if conn, err := d.DialContext(ctx, "unix", socket); err == nil {
			return conn, nil
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the ingress process does not answer; its log is %s", c.log())
}

func (c *Client) log() string { return filepath.Join(c.opts.LogDir, logName) }

// start starts the process in a session of its own, so that it outlives this one.
func (c *Client) start() error {
	if err := os.MkdirAll(c.opts.LogDir, 0o700); err != nil {
		return fmt.Errorf("the folder of the ingress process: %w", err)
	}
	log, err := os.OpenFile(c.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("the log of the ingress process: %w", err)
	}
	defer func() { _ = log.Close() }()
	words := append(slices.Clone(c.opts.Launcher), c.program, c.opts.Dir, c.opts.LogDir)
	command := exec.Command(words[0], words[1:]...)
	command.Stdout, command.Stderr, command.Dir = log, log, "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the ingress process: %w", err)
	}
	go func() { _ = command.Wait() }() // so that a dead one leaves no zombie
	return nil
}
