package netd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/mesh"
)

// program is the network process, built as it is for a release.
var program string

// olderEnv makes the test binary a network process of an older version.
const olderEnv = "NETD_TEST_OLDER"

func TestMain(m *testing.M) {
	if os.Getenv(olderEnv) != "" {
		if err := serve(context.Background(), os.Args[1], version-1, slog.Default()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "netd")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "cloudless-net")
	args := []string{"build", "-trimpath", "-o", program}
	if testing.CoverMode() != "" {
		args = append(args, "-cover")
	}
	if out, err := exec.Command("go", append(args, "../../cmd/cloudless-net")...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the network process: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// machine is a network namespace with a network process in it.
type machine struct {
	t         *testing.T
	name      string
	namespace string
	dir       string
	key       mesh.PrivateKey
	setup     mesh.Setup
	program   string
	older     bool // its agent and its network process are of an older version
	announced chan mesh.Announcement
	failed    chan string
	resolver  chan string
	wanted    chan string
	known     mesh.Peer // as announced last
}

// twoMachines are connected by a cable.
func twoMachines(t *testing.T) (a, b *machine) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	a, b = newMachine(t, "a", 1), newMachine(t, "b", 2)
	run(t, "ip", "-n", a.namespace, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b.namespace)
	for i, m := range []*machine{a, b} {
		run(t, "ip", "-n", m.namespace, "link", "set", "eth0", "up")
		run(t, "ip", "-n", m.namespace, "address", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", "eth0")
	}
	return a, b
}

func newMachine(t *testing.T, name string, number int) *machine {
	t.Helper()
	key, err := mesh.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{
		t: t, name: name, namespace: fmt.Sprintf("netd%d-%s", os.Getpid(), name), dir: t.TempDir(), key: key, program: program,
		announced: make(chan mesh.Announcement, 100), failed: make(chan string, 100), resolver: make(chan string, 100), wanted: make(chan string, 100),
		setup: mesh.Setup{
			ID: "node/" + name, Interface: "mesh0", MTU: 1420, Port: 7000,
			Addresses: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.64.%d.1/32", number))},
			Ranges:    []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")},
		},
	}
	run(t, "ip", "netns", "add", m.namespace)
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", m.namespace).Run() })
	run(t, "ip", "-n", m.namespace, "link", "set", "lo", "up")
	t.Cleanup(func() {
		if err := Stop(context.Background(), m.path("net.sock")); err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// agent runs the agent's side until stop is called.
func (m *machine) agent() (c *Client, stop func()) {
	launcher := []string{"ip", "netns", "exec", m.namespace}
	if m.older {
		launcher = append(launcher, "env", olderEnv+"=1")
	}
	c = NewClient(Options{
		Program: m.program, Launcher: launcher, Socket: m.path("net.sock"), Log: m.path("log"), Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if m.older {
		c.version--
	}
	c.Configure(m.setup, m.key)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Run(ctx, Events{
			Announced: func(a mesh.Announcement) { m.announced <- a }, Failed: func(why string) { m.failed <- why },
			Resolver: func(why string) { m.resolver <- why }, Wanted: func(namespace string) { m.wanted <- namespace },
		})
	}()
	stop = func() {
		cancel()
		<-ended
	}
	m.t.Cleanup(stop)
	return c, stop
}

// peer is the machine as others know it.
func (m *machine) peer() mesh.Peer {
	a := <-m.announced
	for len(a.Candidates) == 0 {
		a = <-m.announced
	}
	m.known = mesh.Peer{ID: m.setup.ID, Name: m.name, Key: a.Key, Prefixes: m.setup.Addresses, Candidates: a.Candidates}
	return m.known
}

func (m *machine) pid() string {
	return strings.TrimSpace(run(m.t, "ip", "netns", "pids", m.namespace))
}

func (m *machine) reach(other *machine) {
	m.t.Helper()
	to := other.setup.Addresses[0].Addr().String()
	for deadline := time.Now().Add(time.Minute); exec.Command("ip", "netns", "exec", m.namespace, "busybox", "ping", "-c", "1", "-W", "1", to).Run() != nil; {
		if time.Now().After(deadline) {
			log, _ := os.ReadFile(m.path("log"))
			m.t.Fatalf("%s does not reach %s: %s", m.name, other.name, log)
		}
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// connected are two machines whose agents have told each process of the other.
func connected(t *testing.T) (a, b *machine, agentA, agentB *Client, stopA func()) {
	t.Helper()
	a, b = twoMachines(t)
	agentA, agentB, stopA = connect(a, b)
	return a, b, agentA, agentB, stopA
}

func connect(a, b *machine) (agentA, agentB *Client, stopA func()) {
	a.t.Helper()
	agentA, stopA = a.agent()
	agentB, _ = b.agent()
	agentA.SetPeers([]mesh.Peer{b.peer()})
	agentB.SetPeers([]mesh.Peer{a.peer()})
	a.reach(b)
	return agentA, agentB, stopA
}

func TestConnectionsOutliveTheAgent(t *testing.T) {
	a, b, _, _, stop := connected(t)
	before := a.pid()
	stop()
	a.reach(b)
	b.reach(a)
	again, _ := a.agent() // which knows no peers yet, but the process does not forget them before it hears so
	if got := a.pid(); got != before {
		t.Errorf("process %s was replaced by %s", before, got)
	}
	again.SetPeers([]mesh.Peer{b.known})
	a.reach(b)
	status, err := again.Status(t.Context(), true)
	if err != nil || len(status.Peers) != 1 || status.Peers[0].Name != "b" {
		t.Errorf("the status is %+v, %v", status, err)
	}
}

func TestKilledProcessIsStartedAgain(t *testing.T) {
	a, b, _, _, _ := connected(t)
	before := a.pid()
	run(t, "kill", "-9", before)
	a.reach(b)
	b.reach(a)
	if a.pid() == before {
		t.Error("the process was not killed")
	}
}

func TestNewKeyIsAnnounced(t *testing.T) {
	a, b, agentA, agentB, _ := connected(t)
	key, err := mesh.NewPrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	a.key = key
	agentA.Configure(a.setup, key)
	renewed := a.peer()
	for renewed.Key != key.Public() {
		renewed = a.peer()
	}
	agentB.UpdatePeers([]mesh.Peer{renewed}, nil)
	a.reach(b)
}

func TestRemovedPeerIsForgotten(t *testing.T) {
	_, b, agentA, _, _ := connected(t)
	agentA.UpdatePeers(nil, []string{b.setup.ID})
	for {
		status, err := agentA.Status(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		if len(status.Peers) == 0 {
			break
		}
	}
}

func TestIdlePeerIsLeftOutUntilItIsProbed(t *testing.T) {
	a, b := twoMachines(t)
	agentA, _ := a.agent()
	agentB, _ := b.agent()
	agentB.SetPeers([]mesh.Peer{a.peer()})
	agentA.SetPeers([]mesh.Peer{b.peer()})
	status, err := agentA.Status(t.Context(), true)
	for err == nil && status.States[mesh.StateIdle] == 0 { // the process does not know the peer yet
		status, err = agentA.Status(t.Context(), true)
	}
	if err != nil || len(status.Peers) != 1 || status.Peers[0].State != mesh.StateIdle {
		t.Fatalf("the status is %+v, %v", status, err)
	}
	if status, err := agentA.Status(t.Context(), false); err != nil || len(status.Peers) != 0 || status.States[mesh.StateIdle] != 1 {
		t.Errorf("without idle peers the status is %+v, %v", status, err)
	}
	peer, err := agentA.Probe(t.Context(), b.setup.ID)
	for err == nil && peer.State != mesh.StateDirect {
		peer, err = agentA.Probe(t.Context(), b.setup.ID)
	}
	if err != nil || peer.Address.Addr() != netip.MustParseAddr("192.0.2.2") || peer.RoundTrip == 0 {
		t.Errorf("the path is %+v, %v", peer, err)
	}
	if _, err := agentA.Probe(t.Context(), "node/stranger"); err == nil {
		t.Error("there is a path to a peer that does not exist")
	}
}

func TestTrafficIsCounted(t *testing.T) {
	a, b, agentA, _, _ := connected(t)
	a.reach(b)
	status, err := agentA.Status(t.Context(), false)
	if err != nil || len(status.Peers) != 1 {
		t.Fatalf("the status is %+v, %v", status, err)
	}
	p := status.Peers[0]
	if p.Sent == 0 || p.Received == 0 || p.Handshake.IsZero() || status.Totals.Handshakes == 0 || status.Totals.Sent < p.Sent {
		t.Errorf("counted %+v, in all %+v", p, status.Totals)
	}
	agentA.UpdatePeers(nil, []string{b.setup.ID})
	for status.States[p.State] > 0 && err == nil {
		status, err = agentA.Status(t.Context(), true)
	}
	if err != nil || status.Totals.Sent < p.Sent || status.Totals.Handshakes == 0 {
		t.Errorf("without the peer, the totals are %+v, %v", status.Totals, err)
	}
}

func TestStoppedProcessLeavesTheInterfaceToItsSuccessor(t *testing.T) {
	a, _, _, _, stop := connected(t)
	stop()
	if err := Stop(t.Context(), a.path("net.sock")); err != nil {
		t.Fatal(err)
	}
	for a.pid() != "" { // it has said goodbye
	}
	if links := run(t, "ip", "-n", a.namespace, "link"); !strings.Contains(links, "mesh0") {
		t.Errorf("the interface is gone: %s", links)
	}
	if err := Stop(t.Context(), a.path("net.sock")); err != nil {
		t.Errorf("the second stop: %v", err)
	}
}

func TestFailedSetupIsRetried(t *testing.T) {
	a, b := twoMachines(t)
	run(t, "ip", "-n", a.namespace, "link", "add", a.setup.Interface, "type", "bridge") // is in the way
	agentA, _ := a.agent()
	agentB, _ := b.agent()
	agentA.SetPeers([]mesh.Peer{b.peer()})
	if why := <-a.failed; !strings.Contains(why, a.setup.Interface) {
		t.Errorf("the problem is %q", why)
	}
	var err error
	for range 3 { // attempts in vain are not reported again
		_, err = agentA.Status(t.Context(), true)
		agentA.SetRelays([]mesh.Relay{})
	}
	if err == nil || !strings.Contains(err.Error(), a.setup.Interface) {
		t.Errorf("the status fails with %v", err)
	}
	run(t, "ip", "-n", a.namespace, "link", "delete", a.setup.Interface)
	agentB.SetPeers([]mesh.Peer{a.peer()})
	a.reach(b) // which it was told of before it had joined
	if why := <-a.failed; why != "" || len(a.failed) != 0 {
		t.Errorf("after the first problem came %q and %d more", why, len(a.failed))
	}
}

func TestProblemIsReported(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	m := newMachine(t, "a", 1)
	m.setup.Interface = "a-name-that-is-too-long"
	c, _ := m.agent()
	if why := <-m.failed; !strings.Contains(why, "a-name-that-is-too-long") {
		t.Errorf("the problem is %q", why)
	}
	if s, err := c.Status(t.Context(), true); err == nil {
		t.Errorf("the status without a network is %+v", s)
	}
}
