package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/app"
	"github.com/cloudless/cloudless/internal/cli/local"
	"github.com/cloudless/cloudless/internal/identity"
)

// rotatingTTL is short enough to see certificates expire, and long enough for a busy machine to renew them in time.
const rotatingTTL = 15 * time.Second

// rotating is a server, an agent and a replica. The certificates expire every few seconds.
type rotating struct {
	t                    *testing.T
	ctx                  context.Context
	address, data, node  string
	config               string
	stopServer, stopNode func()
}

// The server and the agent renew their certificates during a session. The session, a followed log and an exec in a
// replica outlive the certificates that they started with. New connections use the new certificates.
func TestCertificatesRotateUnderALiveSession(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	t.Parallel()
	r := startRotating(t)
	r.cloudless("run", filepath.Join(bin, "probe"), "--name", "counter", "--", "count", "20")
	follow := r.begin("logs", "-f", "--no-prefix", "counter")
	inside := r.begin("exec", "counter", "--", "/probe", "count", "20")
	firstOfNode, firstOfServer := r.nodeCertificate(), r.serverCertificate()

	// Both have new certificates, and the first ones have expired.
	r.until("renewed and ended", func() bool {
		node, server := r.nodeCertificate(), r.serverCertificate()
		return !node.equal(firstOfNode) && !server.equal(firstOfServer) &&
			time.Now().After(firstOfNode.notAfter) && time.Now().After(firstOfServer.notAfter)
	})
	seen := follow.lines()
	r.until("still followed", func() bool { return follow.lines() > seen+20 })
	seen = inside.lines()
	r.until("still executed", func() bool { return inside.lines() > seen+20 })
	r.cloudless("exec", "counter", "--", "/probe", "exit", "0")
	if sessions, failures := r.metric("cloudless_agent_sessions_total"), r.metric("cloudless_agent_session_failures_total"); sessions != "1" || failures != "0" {
		t.Errorf("the agent opened %s sessions and lost %s, want one session", sessions, failures)
	}
	for name, stream := range map[string]*stream{"the log": follow, "the command": inside} {
		if err := stream.unbroken(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		stream.end()
	}

	// A new connection uses certificates that did not exist when the processes started.
	r.stopServer()
	r.startServer()
	r.until("connected again", func() bool { return r.metric("cloudless_agent_connected") == "1" })
	r.cloudless("exec", "counter", "--", "/probe", "exit", "0")
	if events := r.cloudless("events"); strings.Contains(events, "Offline") {
		t.Errorf("the node counted as offline:\n%s", events)
	}
	if replicas := r.cloudless("ps", "-o", "json"); strings.Contains(replicas, `"restarts"`) {
		t.Errorf("the replica was restarted:\n%s", replicas)
	}
}

func startRotating(t *testing.T) *rotating {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), storyPatience)
	t.Cleanup(cancel)
	r := &rotating{
		t: t, ctx: ctx, address: freeAddress(t), data: filepath.Join(dir, "server"), node: filepath.Join(dir, "node"), config: filepath.Join(dir, "config.yaml"),
	}
	r.startServer()
	t.Cleanup(func() { r.stopServer() })
	token := strings.TrimSpace(r.cloudless("token", "create", "--role", "node"))
	r.stopNode = r.run("the node", func(ctx context.Context, process local.Process) error {
		process.DataDir = r.node
		return app.Roles().Join(ctx, local.JoinOptions{Process: process, Machine: local.Machine{Name: "n1"}, Address: r.address, Token: token, Role: "node"})
	})
	t.Cleanup(func() {
		r.stopNode()
		purge(r.config, r.node, t.Logf)
	})
	return r
}

func (r *rotating) startServer() {
	r.t.Helper()
	r.stopServer = r.run("the server", func(ctx context.Context, process local.Process) error {
		process.DataDir, process.CertificateTTL = r.data, rotatingTTL
		return app.Roles().Server(ctx, local.ServerOptions{Process: process, Reach: local.Reach{APIAddr: r.address}, ConfigPath: r.config})
	})
}

// run starts a role and returns when it is ready. stop ends it and waits for its exit.
func (r *rotating) run(name string, role func(context.Context, local.Process) error) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(r.ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- role(ctx, local.Process{Version: "test", Log: io.Discard, Progress: func(string) {}, Ready: func(string) { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		r.t.Fatalf("%s exited: %v", name, err)
	}
	return sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			r.t.Errorf("%s ended with %v", name, err)
		}
	})
}

func (r *rotating) command(args ...string) *exec.Cmd {
	cmd := bounded(r.ctx, filepath.Join(bin, "cloudless"), args...)
	cmd.Env = append(os.Environ(), "CLOUDLESS_CONFIG="+r.config)
	return cmd
}

// cloudless runs a command and returns its output.
func (r *rotating) cloudless(args ...string) string {
	r.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := r.command(args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("cloudless %s: %v\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String()
}

// until waits for a condition.
func (r *rotating) until(what string, reached func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if reached() {
			return
		}
	}
	r.t.Fatalf("never %s", what)
}

// seenCertificate identifies a certificate.
type seenCertificate struct {
	raw      []byte
	notAfter time.Time
}

func (c seenCertificate) equal(other seenCertificate) bool { return bytes.Equal(c.raw, other.raw) }

func (r *rotating) credentials() *identity.Credentials {
	r.t.Helper()
	saved, err := identity.LoadCredentials(filepath.Join(r.node, "agent", "identity.pem"))
	if err != nil {
		r.t.Fatal(err)
	}
	return saved
}

func (r *rotating) nodeCertificate() seenCertificate {
	r.t.Helper()
	cert, err := r.credentials().Certificate()
	if err != nil {
		r.t.Fatal(err)
	}
	return seenCertificate{cert.Leaf.Raw, cert.Leaf.NotAfter}
}

// serverCertificate returns the certificate that the server sends to a new connection.
func (r *rotating) serverCertificate() seenCertificate {
	r.t.Helper()
	config := identity.ClientTLS(r.credentials().Trust(), nil)
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", r.address, config)
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	leaf := conn.ConnectionState().PeerCertificates[0]
	return seenCertificate{leaf.Raw, leaf.NotAfter}
}

// metric returns the value of one of the agent's metrics.
func (r *rotating) metric(name string) string {
	r.t.Helper()
	content, err := os.ReadFile(filepath.Join(r.node, "cloud.json"))
	if err != nil {
		r.t.Fatal(err)
	}
	var cloud struct{ ID string }
	if err := json.Unmarshal(content, &cloud); err != nil {
		r.t.Fatal(err)
	}
	out, err := bounded(r.ctx, "curl", "-s", "--unix-socket", "/run/cloudless/"+cloud.ID+"/metrics.sock", "http://agent/metrics").Output()
	if err != nil {
		r.t.Fatal(err)
	}
	value := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(out)
	if value == nil {
		r.t.Fatalf("there is no metric %s in\n%s", name, out)
	}
	return string(value[1])
}

// stream is the output of a command that runs until it is interrupted.
type stream struct {
	t   *testing.T
	cmd *exec.Cmd

	mu  sync.Mutex
	out bytes.Buffer
}

func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (r *rotating) begin(args ...string) *stream {
	r.t.Helper()
	s := &stream{t: r.t, cmd: r.command(args...)}
	s.cmd.Stdout, s.cmd.Stderr = s, s
	if err := s.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.until("output of "+args[0], func() bool { return s.lines() > 5 })
	return s
}

func (s *stream) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

func (s *stream) lines() int { return strings.Count(s.text(), "\n") }

// unbroken returns an error unless the lines are "line 0", "line 1" and so on.
func (s *stream) unbroken() error {
	text := s.text()
	return inOrder(text[:strings.LastIndex(text, "\n")+1])
}

func (s *stream) end() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		s.t.Error(err)
	}
	_ = s.cmd.Wait() // interrupted
}
