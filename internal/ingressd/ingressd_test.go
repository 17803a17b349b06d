package ingressd

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
)

// program is the ingress process, built as it is for a release.
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
	dir, err := os.MkdirTemp("", "ingressd")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "cloudless-ingress-1")
	args := []string{"build", "-tags", "no_grpc", "-trimpath", "-o", program}
	if testing.CoverMode() != "" {
		args = append(args, "-cover")
	}
	if out, err := exec.Command("go", append(args, "../../cmd/cloudless-ingress")...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the ingress process: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// machine is where an ingress process runs.
type machine struct {
	t       *testing.T
	dir     string
	logs    string
	program string
	http    int
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	// Keys are only stored in memory, so the folder has to be there.
	dir := must.Get(os.MkdirTemp("/dev/shm", "ingressd"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	m := &machine{t: t, dir: dir, logs: t.TempDir(), program: program, http: freePort(t)}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := Stop(ctx, m.dir); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the log of the process:\n%s", must.Get(os.ReadFile(filepath.Join(m.logs, logName)))(t))
		}
	})
	return m
}

func freePort(t *testing.T) int {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// agent is the agent's side. Its end is the agent's.
func (m *machine) agent() *Client {
	m.t.Helper()
	c, err := Start(context.Background(), Options{
		Dir: m.dir, LogDir: m.logs, Program: func() (string, error) { return m.program, nil }, Log: slog.New(slog.NewTextHandler(m.t.Output(), nil)),
	})
	must.Succeed(m.t, err)
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// full is a route to a server.
func (m *machine) full(server string) *v1.IngressDown {
	m.t.Helper()
	host, port, err := net.SplitHostPort(server)
	must.Succeed(m.t, err)
	return &v1.IngressDown{
		Full: true, Settings: &v1.Ingress{HttpPort: int32(m.http), HttpsPort: int32(m.http + 1)},
		Routes: []*v1.IngressRoute{{
			Uid: "r", Namespace: "default", Name: "web", ServiceUids: []string{"s"},
			Spec: &v1.RouteSpec{Host: "web.test", Backends: []*v1.RouteBackend{{Service: "web"}}},
		}},
		Services: []*v1.IngressService{{
			Uid: "s", Ports: []*v1.IngressServicePort{{Port: 80, TargetPort: int32(must.Get(strconv.Atoi(port))(m.t))}},
			Endpoints: []*v1.IngressEndpoint{{Id: "e", Addresses: []string{host}, State: "ready", Weight: 1, RevisionUid: "v"}},
		}},
	}
}

// opened waits for the report that the port is open.
func opened(t *testing.T, c *Client) {
	t.Helper()
	for up := range c.Reports() {
		if up.GetPortsSet() && len(up.GetPorts()) > 0 && up.GetPorts()[0].GetProblem() == "" {
			return
		}
	}
	t.Fatal("the port was not opened")
}

// get makes a request on a connection of its own.
func (m *machine) get(path string) string {
	m.t.Helper()
	conn := must.Get(net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.http))))(m.t)
	defer conn.Close()
	return ask(m.t, conn, path)
}

func ask(t *testing.T, conn net.Conn, path string) string {
	t.Helper()
	_, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: web.test\r\n\r\n", path)
	must.Succeed(t, err)
	p := must.Get(http.ReadResponse(bufio.NewReader(conn), nil))(t)
	defer p.Body.Close()
	return string(must.Get(io.ReadAll(p.Body))(t))
}

func says(t *testing.T, text string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// pid is the process that listens on the socket.
func (m *machine) pid() int {
	m.t.Helper()
	conn := must.Get(net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(m.dir, socketName), Net: "unix"}))(m.t)
	defer conn.Close()
	raw := must.Get(conn.SyscallConn())(m.t)
	pid := 0
	must.Succeed(m.t, raw.Control(func(fd uintptr) {
		if cred, err := syscallPeer(int(fd)); err == nil {
			pid = int(cred.Pid)
		}
	}))
	return pid
}

func syscallPeer(fd int) (*syscall.Ucred, error) {
	return syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
}

// echo is a backend of a connection that stays: it repeats each line.
func echo(t *testing.T) string {
	t.Helper()
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return l.Addr().String()
}

// stream adds a TCP route to a message, and returns its port.
func (m *machine) stream(down *v1.IngressDown, server string) int {
	m.t.Helper()
	_, port, err := net.SplitHostPort(server)
	must.Succeed(m.t, err)
	public := freePort(m.t)
	down.Routes = append(down.Routes, &v1.IngressRoute{
		Uid: "t", Namespace: "default", Name: "stream", ServiceUids: []string{"st"},
		Spec: &v1.RouteSpec{Tcp: int32(public), Backends: []*v1.RouteBackend{{Service: "stream"}}},
	})
	service := proto.CloneOf(down.GetServices()[0])
	service.Uid, service.Ports[0].TargetPort = "st", int32(must.Get(strconv.Atoi(port))(m.t))
	down.Services = append(down.Services, service)
	return public
}

// talk sends a line and expects it back.
func talk(t *testing.T, conn net.Conn, line string) {
	t.Helper()
	_, err := io.WriteString(conn, line+"\n")
	must.Succeed(t, err)
	if got, err := bufio.NewReader(conn).ReadString('\n'); got != line+"\n" {
		t.Fatalf("got %q, %v, want %q", got, err, line)
	}
}

func TestConnectionsOutliveTheAgent(t *testing.T) {
	m := newMachine(t)
	first := m.agent()
	down := m.full(says(t, "hello"))
	port := m.stream(down, echo(t))
	must.Succeed(t, first.Send(down))
	opened(t, first)
	conn := must.Get(net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))))(t)
	defer conn.Close()
	talk(t, conn, "before")
	before := m.pid()
	must.Succeed(t, first.Close())
	talk(t, conn, "without an agent")
	if got := m.get("/"); got != "hello" {
		t.Errorf("without an agent the answer is %q", got)
	}
	again := m.agent() // which knows nothing yet, but the process does not forget before it hears so
	opened(t, again)
	talk(t, conn, "with another agent")
	if got := m.pid(); got != before {
		t.Errorf("process %d was replaced by %d", before, got)
	}
	must.Succeed(t, again.Send(m.full(says(t, "goodbye"))))
	for m.get("/") != "goodbye" {
	}
}

// An upgrade: the new process gets the ports, so that no client is refused, and the old one keeps what is open.
func TestUpgradeRefusesNobodyAndBreaksNothing(t *testing.T) {
	m := newMachine(t)
	first := m.agent()
	down := m.full(says(t, "hello"))
	port := m.stream(down, echo(t))
	must.Succeed(t, first.Send(down))
	opened(t, first)
	conn := must.Get(net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))))(t)
	defer conn.Close()
	talk(t, conn, "before")
	before := m.pid()
	must.Succeed(t, first.Close())

	ctx, cancel := context.WithCancel(t.Context())
	requests := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil {
			if got := m.get("/"); got != "hello" {
				t.Errorf("during the upgrade the answer is %q", got)
			}
			n++
		}
		requests <- n
	}()
	m.program = filepath.Join(t.TempDir(), "cloudless-ingress-2")
	must.Succeed(t, os.Link(program, m.program))
	second := m.agent()
	opened(t, second)
	after := m.pid()
	cancel()
	if n := <-requests; n == 0 {
		t.Error("no request was made during the upgrade")
	}
	if after == before {
		t.Error("the process was not replaced")
	}
	talk(t, conn, "after")
	if got := m.get("/"); got != "hello" {
		t.Errorf("after the upgrade the answer is %q", got)
	}
	_ = conn.Close()
	for syscall.Kill(before, 0) == nil { // it ends with its last connection
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", before)); err == nil && strings.Contains(string(state), ") Z ") {
			break
		}
	}
}

// A process after a crash knows what the one before knew, even before there is an agent with a server.
func TestProcessAfterACrashServes(t *testing.T) {
	m := newMachine(t)
	first := m.agent()
	must.Succeed(t, first.Send(m.full(says(t, "hello"))))
	opened(t, first)
	must.Succeed(t, first.Close())
	for { // it is stored a moment later
		if _, err := os.Stat(filepath.Join(m.dir, stateName)); err == nil {
			break
		}
	}
	if info := must.Get(os.Stat(filepath.Join(m.dir, stateName)))(t); info.Mode().Perm() != 0o600 {
		t.Errorf("what it knows has mode %v", info.Mode())
	}
	before := m.pid()
	must.Succeed(t, syscall.Kill(before, syscall.SIGKILL))
	second := m.agent()
	opened(t, second)
	if got := m.get("/"); got != "hello" {
		t.Errorf("after a crash the answer is %q", got)
	}
	must.Succeed(t, second.Stop())
	if names := must.List(t, m.dir); strings.Contains(names, stateName) {
		t.Errorf("a process that was stopped leaves %s", names)
	}
}

func TestPortOfAnotherProgramIsReportedAndTakenWhenFree(t *testing.T) {
	m := newMachine(t)
	l := must.Get(net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(m.http))))(t)
	comm := strings.TrimSpace(string(must.Get(os.ReadFile("/proc/self/comm"))(t)))
	c := m.agent()
	must.Succeed(t, c.Send(m.full(says(t, "hello"))))
	for up := range c.Reports() {
		if len(up.GetPorts()) == 0 {
			continue
		}
		want := fmt.Sprintf("Another program, process %d (%s), uses tcp port %d.", os.Getpid(), comm, m.http)
		if got := up.GetPorts()[0].GetProblem(); got != want {
			t.Errorf("the problem is %q, want %q", got, want)
		}
		break
	}
	must.Succeed(t, l.Close())
	opened(t, c)
	if got := m.get("/"); got != "hello" {
		t.Errorf("the answer is %q", got)
	}
}

func TestProcessKeepsFewPrivileges(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root has privileges to give away")
	}
	m := newMachine(t)
	c := m.agent()
	must.Succeed(t, c.Send(m.full(says(t, "hello"))))
	opened(t, c)
	status := string(must.Get(os.ReadFile(fmt.Sprintf("/proc/%d/status", m.pid())))(t))
	for _, want := range []string{"CapEff:\t0000000000000400", "CapBnd:\t0000000000000400", "NoNewPrivs:\t1"} {
		if !strings.Contains(status, want) {
			t.Errorf("the process has not %q: %s", want, status)
		}
	}
}

// Ten thousand clients that send nothing, or too little, hold connections and no more.
func TestSlowClientsDoNotKeepOthersFromBeingServed(t *testing.T) {
	const slow = 10_000
	var limit syscall.Rlimit
	if must.Succeed(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit)); limit.Cur < slow+1000 || os.Getuid() != 0 {
		t.Skipf("%d connections need more than %d files, and root", slow, limit.Cur)
	}
	m := newMachine(t)
	c := m.agent()
	must.Succeed(t, c.Send(m.full(says(t, "hello"))))
	opened(t, c)
	conns := make([]net.Conn, slow)
	var dialing sync.WaitGroup
	for part := range 8 {
		dialing.Go(func() {
			for i := part; i < slow; i += 8 {
				conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(m.http)))
				if err != nil {
					t.Error(err)
					return
				}
				conns[i] = conn
				_, _ = io.WriteString(conn, []string{"", "G", "GET / HTTP/1.1\r\nHost: web.test\r\nX: "}[i%3])
			}
		})
	}
	dialing.Wait()
	for range 50 {
		if got := m.get("/"); got != "hello" {
			t.Fatalf("the answer is %q", got)
		}
	}
	for _, conn := range conns {
		if conn != nil {
			conn.Close()
		}
	}
}
