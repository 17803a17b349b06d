package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	eventsapi "github.com/containerd/containerd/api/events"
	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	eventsservice "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cloudless/cloudless/internal/logfile"
)

// program is the shim, built as for a release, and with coverage counters if the tests measure coverage.
var program string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "cloudless-shim")
	args := []string{"build", "-tags", "no_grpc", "-trimpath", "-ldflags", "-s -w", "-o", program}
	if testing.CoverMode() != "" {
		args = append(args, "-cover")
	}
	build := exec.Command("go", append(args, ".")...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the shim: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// container is a bundle and the shim that runs it, as containerd sees it.
type container struct {
	taskapi.TTRPCTaskService
	t       *testing.T
	ctx     context.Context
	dir     string // all files of this container
	bundle  string
	logs    string
	uri     string
	address string
	conn    net.Conn
	client  *ttrpc.Client
	shimPID int
	pid     uint32
	events  *eventsListener
}

const namespace = "shim-test"

// newContainer starts a shim for a container that runs script, and creates the
// container. edit may change its spec.
func newContainer(t *testing.T, script string, edit func(*specs.Spec)) *container {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a container, which needs root; make test runs it")
	}
	dir, err := os.MkdirTemp("", "cs") // the paths of sockets must be short
	if err != nil {
		t.Fatal(err)
	}
	c := &container{
		t:      t,
		ctx:    namespaces.WithNamespace(context.Background(), namespace),
		dir:    dir,
		bundle: filepath.Join(dir, "bundles", filepath.Base(dir)),
		logs:   filepath.Join(dir, "logs"),
	}
	t.Cleanup(c.cleanUp)
	c.uri = logfile.URI(c.logs, logfile.Limits{MaxFiles: 100})
	c.writeBundle(script, edit)
	c.listenForEvents()
	c.startShim()
	c.connect()
	return c
}

func (c *container) id() string { return filepath.Base(c.bundle) }

func (c *container) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// writeBundle makes a root file system of busybox and a spec.
func (c *container) writeBundle(script string, edit func(*specs.Spec)) {
	bin := filepath.Join(c.bundle, "rootfs", "bin")
	for _, dir := range []string{bin, filepath.Join(c.bundle, "rootfs", "proc"), filepath.Join(c.bundle, "rootfs", "dev")} {
		c.must(os.MkdirAll(dir, 0o755))
	}
	busybox, err := os.ReadFile("/bin/busybox")
	c.must(err)
	c.must(os.WriteFile(filepath.Join(bin, "busybox"), busybox, 0o755))
	for _, applet := range []string{"sh", "seq", "head", "tr", "sleep", "cat", "tty", "setsid"} {
		c.must(os.Symlink("busybox", filepath.Join(bin, applet)))
	}
	spec := &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/"},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/cloudless-shim-test-" + c.id(),
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}},
		},
	}
	if edit != nil {
		edit(spec)
	}
	config, err := json.Marshal(spec)
	c.must(err)
	c.must(os.WriteFile(filepath.Join(c.bundle, "config.json"), config, 0o644))
}

// fifo makes a named pipe in the container's root.
func (c *container) fifo(name string) *os.File {
	path := filepath.Join(c.bundle, "rootfs", name)
	c.must(unix.Mkfifo(path, 0o600))
	f, err := os.OpenFile(path, os.O_RDWR, 0) // both ways, so that opening does not block
	c.must(err)
	c.t.Cleanup(func() { f.Close() })
	return f
}

// startShim starts a shim as containerd does.
func (c *container) startShim() {
	c.must(unix.Mkfifo(filepath.Join(c.bundle, "log"), 0o600))
	log, err := os.OpenFile(filepath.Join(c.bundle, "log"), os.O_RDWR, 0)
	c.must(err)
	c.t.Cleanup(func() { log.Close() })
	go io.Copy(c.t.Output(), log) // ends when log is closed

	params, err := proto.Marshal(&bootapi.BootstrapParams{
		InstanceID: c.id(), Namespace: namespace, SocketDir: proto.String(filepath.Join(c.dir, "s")),
	})
	c.must(err)
	cmd := c.command("start")
	cmd.Stdin = bytes.NewReader(params)
	out, err := cmd.Output()
	c.must(err)
	var result bootapi.BootstrapResult
	c.must(proto.Unmarshal(out, &result))
	c.address = strings.TrimPrefix(result.Address, "unix://")
}

func (c *container) command(action string) *exec.Cmd {
	cmd := exec.Command(program, "-namespace", namespace, "-id", c.id(), "-address", c.dir+"/none.sock", action)
	cmd.Dir = c.bundle
	cmd.Env = append(os.Environ(), "TTRPC_ADDRESS="+c.events.address)
	cmd.Stderr = c.t.Output()
	return cmd
}

// connect opens the connection to the shim that containerd would hold.
func (c *container) connect() {
	c.t.Helper()
	conn, err := net.Dial("unix", c.address)
	c.must(err)
	c.conn, c.client = conn, ttrpc.NewClient(conn)
	c.TTRPCTaskService = taskapi.NewTTRPCTaskClient(c.client)
	resp, err := c.Connect(c.ctx, &taskapi.ConnectRequest{ID: c.id()})
	c.must(err)
	c.shimPID = int(resp.ShimPid)
}

// disconnect simulates a crash of containerd.
func (c *container) disconnect() {
	c.client.Close()
	c.conn.Close()
	c.events.close()
}

// create creates the container's process with its output in the log.
func (c *container) create(terminal bool) {
	c.t.Helper()
	resp, err := c.createTask(terminal)
	c.must(err)
	c.pid = resp.Pid
}

// tryToCreate is create without output to a terminal, which may fail.
func (c *container) tryToCreate() (*taskapi.CreateTaskResponse, error) { return c.createTask(false) }

func (c *container) createTask(terminal bool) (*taskapi.CreateTaskResponse, error) {
	opts, err := typeurl.MarshalAnyToProto(&options.Options{Root: filepath.Join(c.dir, "runc")})
	if err != nil {
		return nil, err
	}
	stderr := c.uri
	if terminal {
		stderr = ""
	}
	return c.Create(c.ctx, &taskapi.CreateTaskRequest{
		ID: c.id(), Bundle: c.bundle, Stdout: c.uri, Stderr: stderr, Terminal: terminal, Options: opts,
	})
}

// run creates and starts the container.
func (c *container) run() *container {
	c.t.Helper()
	c.create(false)
	_, err := c.Start(c.ctx, &taskapi.StartRequest{ID: c.id()})
	c.must(err)
	return c
}

// wait waits for the container's end and checks its status.
func (c *container) wait(want uint32) {
	c.t.Helper()
	resp, err := c.Wait(c.ctx, &taskapi.WaitRequest{ID: c.id()})
	c.must(err)
	if resp.ExitStatus != want {
		c.t.Errorf("exit status %d, want %d", resp.ExitStatus, want)
	}
}

func (c *container) kill() {
	c.t.Helper()
	_, err := c.Kill(c.ctx, &taskapi.KillRequest{ID: c.id(), Signal: uint32(unix.SIGKILL)})
	c.must(err)
}

// cleanUp removes everything, in whatever state the test left it.
func (c *container) cleanUp() {
	if c.client != nil {
		_, _ = c.Kill(c.ctx, &taskapi.KillRequest{ID: c.id(), Signal: uint32(unix.SIGKILL), All: true})
		_, _ = c.Wait(c.ctx, &taskapi.WaitRequest{ID: c.id()})
		_, _ = c.Delete(c.ctx, &taskapi.DeleteRequest{ID: c.id()})
		_, _ = c.Shutdown(c.ctx, &taskapi.ShutdownRequest{ID: c.id()})
		waitForEnd(c.t, c.shimPID)
		c.client.Close()
		c.conn.Close()
	}
	if c.events != nil {
		c.events.close()
	}
	if err := os.RemoveAll(c.dir); err != nil {
		c.t.Error(err)
	}
}

// waitForEnd returns when a process that is no child of ours has ended.
func waitForEnd(t *testing.T, pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Errorf("wait for process %d: %v", pid, err)
		}
		return
	}
}

// lines returns the present content of the log: "stdout: text".
func (c *container) lines() []string {
	c.t.Helper()
	var lines []string
	c.eachLine(c.t.Context(), logfile.Options{Tail: -1}, func(line string) bool {
		lines = append(lines, line)
		return true
	})
	return lines
}

// waitForLine returns when a line is in the log.
func (c *container) waitForLine(want string) {
	c.t.Helper()
	c.eachLine(c.t.Context(), logfile.Options{Tail: -1, Follow: true}, func(line string) bool {
		return line != want
	})
}

func (c *container) eachLine(ctx context.Context, opts logfile.Options, fn func(line string) bool) {
	c.t.Helper()
	parts := map[logfile.Stream]*strings.Builder{logfile.Stdout: {}, logfile.Stderr: {}}
	err := logfile.Read(ctx, c.logs, opts, func(e logfile.Entry) error {
		b := parts[e.Stream]
		b.WriteString(e.Line)
		if e.Partial {
			return nil
		}
		defer b.Reset()
		if !fn(string(e.Stream) + ": " + b.String()) {
			return io.EOF
		}
		return nil
	})
	if err != nil && err != io.EOF {
		c.t.Fatal(err)
	}
}

// eventsListener is the side of containerd that takes events.
type eventsListener struct {
	address  string
	listener net.Listener
	server   *ttrpc.Server
	onExit   func(*eventsapi.TaskExit)
	created  chan *eventsapi.TaskCreate
	exits    chan *eventsapi.TaskExit
}

func (c *container) listenForEvents() {
	server, err := ttrpc.NewServer()
	c.must(err)
	address := filepath.Join(c.dir, "events.sock")
	l, err := net.Listen("unix", address)
	c.must(err)
	c.events = &eventsListener{
		address: address, listener: l, server: server,
		created: make(chan *eventsapi.TaskCreate, 10), exits: make(chan *eventsapi.TaskExit, 10),
	}
	eventsservice.RegisterTTRPCEventsService(server, c.events)
	go server.Serve(context.Background(), l) // ends when the server is closed
}

func (l *eventsListener) close() { l.server.Close() }

func (l *eventsListener) Forward(_ context.Context, r *eventsservice.ForwardRequest) (*emptypb.Empty, error) {
	event, err := typeurl.UnmarshalAny(r.Envelope.Event)
	if err != nil {
		return nil, err
	}
	switch e := event.(type) {
	case *eventsapi.TaskCreate:
		l.created <- e
	case *eventsapi.TaskExit:
		if l.onExit != nil {
			l.onExit(e)
		}
		l.exits <- e
	}
	return &emptypb.Empty{}, nil
}
