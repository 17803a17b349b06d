package mesh

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// Nodes of these tests are real processes in network namespaces of their own: this test binary again.

const nodeEnv = "MESH_TEST_NODE"

func TestMain(m *testing.M) {
	if config := os.Getenv(nodeEnv); config != "" {
		if err := runNode(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// nodeConfig is given to the process of a node.
type nodeConfig struct {
	ID        string
	Key       []byte
	MTU       int
	Port      uint16
	Addresses []netip.Prefix
}

// order tells a node something, and report is what it says.
type order struct {
	Peers  []Peer
	Relays []Relay
	Status bool
}

type report struct {
	Announced *Announcement
	Status    *Status
}

func runNode(text string) error {
	var c nodeConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	key, err := ParsePrivateKey(c.Key)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(r)
	}
	m, err := Open(Options{
		Key: key,
		Setup: Setup{
			Interface: "mesh0", MTU: c.MTU, Port: c.Port, Addresses: c.Addresses,
			Ranges: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("fd64::/16")},
		},
		Dial: func(ctx context.Context, r Relay) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.Address)
			if err == nil {
				_, err = fmt.Fprintln(conn, c.ID)
			}
			return conn, err
		},
		Announce: func(a Announcement) { say(report{Announced: &a}) },
		Logger:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		return err
	}
	go func() {
		defer stop()
		for in := json.NewDecoder(os.Stdin); ; {
			var o order
			if in.Decode(&o) != nil {
				return
			}
			if o.Peers != nil {
				m.SetPeers(o.Peers)
			}
			if o.Relays != nil {
				m.SetRelays(o.Relays)
			}
			if o.Status {
				s := m.Status(true)
				say(report{Status: &s})
			}
		}
	}()
	err = m.Run(ctx)
	return fmt.Errorf("ended: %w", errorsJoin(err, m.Close()))
}

func errorsJoin(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return io.EOF
}

// lab is a small internet: namespaces on one Ethernet, with a relay.
type lab struct {
	t     *testing.T
	name  string
	count int
	hub   *relay.Hub
	relay Relay

	mu    sync.Mutex
	nodes []*node // those that know each other
}

// node is a process in a namespace.
type node struct {
	lab       *lab
	config    nodeConfig
	namespace string
	key       PrivateKey
	process   *exec.Cmd
	in        io.WriteCloser
	reports   chan report

	mu        sync.Mutex
	announced Announcement
}

var labs atomic.Int32

func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	t.Parallel()
	l := &lab{t: t, name: fmt.Sprintf("mesh%d-%d", os.Getpid(), labs.Add(1)), hub: relay.NewHub(relay.Limits{})}
	l.addNamespace("net")
	l.ip("-n", l.ns("net"), "link", "add", "lan", "type", "bridge")
	l.ip("-n", l.ns("net"), "link", "set", "lan", "up")
	l.ip("-n", l.ns("net"), "address", "add", "198.51.100.1/24", "dev", "lan")
	l.ip("-n", l.ns("net"), "address", "add", "fd99::1/64", "dev", "lan", "nodad")
	l.serveRelay()
	return l
}

func (l *lab) ns(name string) string { return l.name + name }

func (l *lab) addNamespace(name string) {
	l.t.Helper()
	l.ip("netns", "add", l.ns(name))
	l.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", l.ns(name)).Run() })
	l.ip("-n", l.ns(name), "link", "set", "lo", "up")
}

func (l *lab) ip(args ...string) { l.t.Helper(); l.run("ip", args...) }

func (l *lab) run(name string, args ...string) string {
	l.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		l.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (l *lab) in(namespace string, args ...string) string {
	l.t.Helper()
	return l.run("ip", append([]string{"netns", "exec", l.ns(namespace)}, args...)...)
}

// attach connects a namespace to another's bridge or to the internet, as interface eth0.
func (l *lab) attach(namespace, to, bridge string, addresses ...string) {
	l.t.Helper()
	l.count++
	outer := fmt.Sprintf("v%d", l.count)
	l.ip("-n", l.ns(to), "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", l.ns(namespace))
	l.ip("-n", l.ns(to), "link", "set", outer, "up", "master", bridge)
	l.ip("-n", l.ns(namespace), "link", "set", "eth0", "up")
	for _, a := range addresses {
		l.ip("-n", l.ns(namespace), "address", "add", a, "dev", "eth0", "nodad")
	}
}

// inNamespace calls f in a namespace: sockets that it opens stay there.
func (l *lab) inNamespace(namespace string, f func() error) {
	l.t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with the goroutine: it is in another namespace
		var there *os.File
		if there, err = os.Open("/run/netns/" + l.ns(namespace)); err != nil {
			return
		}
		defer there.Close()
		if err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err == nil {
			err = f()
		}
	}()
	<-done
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) serveRelay() {
	var listener net.Listener
	var questions net.PacketConn
	l.inNamespace("net", func() (err error) {
		if listener, err = net.Listen("tcp", ":7443"); err == nil {
			questions, err = net.ListenPacket("udp", ":7443")
		}
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() { _ = relay.AnswerSTUN(questions) })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				first := make([]byte, 0, 64)
				for one := make([]byte, 1); ; first = append(first, one[0]) {
					if _, err := conn.Read(one); err != nil || one[0] == '\n' {
						break
					}
				}
				_ = l.hub.Serve(ctx, relay.AddressOf(string(first)), conn)
			})
		}
	})
	l.t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		_ = questions.Close()
		serving.Wait()
	})
	l.relay = Relay{ID: "relay", Address: "198.51.100.1:7443"}
}

// addNode starts the process of a node in a namespace that exists.
func (l *lab) addNode(name string, mtu int) *node {
	l.t.Helper()
	key := newKey(l.t)
	l.mu.Lock()
	number := len(l.nodes) + 1
	l.mu.Unlock()
	n := &node{
		lab: l, namespace: name, key: key, reports: make(chan report, 100),
		config: nodeConfig{
			ID: "node/" + name, Key: key.Bytes(), MTU: mtu, Port: 7000,
			Addresses: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("10.64.%d.1/32", number)), netip.MustParsePrefix(fmt.Sprintf("fd64:%d::1/128", number)),
			},
		},
	}
	l.mu.Lock()
	l.nodes = append(l.nodes, n)
	l.mu.Unlock()
	n.start()
	l.t.Cleanup(n.kill)
	return n
}

func (n *node) start() {
	n.lab.t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	text, err := json.Marshal(n.config)
	if err != nil {
		n.lab.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		n.lab.t.Fatal(err)
	}
	n.process = exec.Command("ip", "netns", "exec", n.lab.ns(n.namespace), exe)
	n.process.Env = append(os.Environ(), nodeEnv+"="+string(text))
	n.process.Stderr = &logWriter{t: n.lab.t, prefix: n.namespace}
	n.in, err = n.process.StdinPipe()
	if err != nil {
		n.lab.t.Fatal(err)
	}
	out, err := n.process.StdoutPipe()
	if err != nil {
		n.lab.t.Fatal(err)
	}
	if err := n.process.Start(); err != nil {
		n.lab.t.Fatal(err)
	}
	go n.listen(out)
}

func (n *node) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r report
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		if r.Announced != nil {
			n.mu.Lock()
			n.announced = *r.Announced
			n.mu.Unlock()
			n.lab.share()
		}
		if r.Status != nil {
			n.reports <- r
		}
	}
}

func (n *node) kill() {
	_ = n.process.Process.Kill()
	_ = n.process.Wait()
}

func (n *node) tell(o order) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.in == nil {
		return // it starts later
	}
	text, _ := json.Marshal(o)
	_, _ = n.in.Write(append(text, '\n'))
}

// peer is the node as others know it.
func (n *node) peer() Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := Peer{ID: n.config.ID, Name: n.namespace, Key: n.key.Public(), Prefixes: n.config.Addresses, Candidates: n.announced.Candidates, Relay: n.announced.Relay}
	return p
}

// share does the control plane's work: it tells every node about all others.
func (l *lab) share() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		o := order{Relays: []Relay{l.relay}, Peers: []Peer{}}
		for _, other := range l.nodes {
			if other != n {
				o.Peers = append(o.Peers, other.peer())
			}
		}
		n.tell(o)
	}
}

func (n *node) status() Status {
	n.tell(order{Status: true})
	return *(<-n.reports).Status
}

// until waits until what a node says of a peer is as wanted.
func (n *node) until(peer *node, wanted func(PeerStatus) bool) PeerStatus {
	n.lab.t.Helper()
	deadline := time.Now().Add(time.Minute) // a test that hangs says where
	for {
		for _, p := range n.status().Peers {
			if p.ID == peer.config.ID && wanted(p) {
				return p
			}
			if p.ID == peer.config.ID && time.Now().After(deadline) {
				n.lab.t.Fatalf("%s sees %s as %+v", n.namespace, peer.namespace, p)
			}
		}
		n.ping(peer) // traffic keeps it busy
		time.Sleep(20 * time.Millisecond)
	}
}

// ping sends one packet through the mesh and reports whether it was answered.
func (n *node) ping(peer *node) bool {
	to := peer.config.Addresses[0].Addr().String()
	return exec.Command("ip", "netns", "exec", n.lab.ns(n.namespace), "busybox", "ping", "-c", "1", "-W", "1", to).Run() == nil
}

// reach pings until there is an answer.
func (n *node) reach(peer *node) {
	n.lab.t.Helper()
	for deadline := time.Now().Add(time.Minute); !n.ping(peer); {
		if time.Now().After(deadline) {
			n.lab.t.Fatalf("%s does not reach %s: %+v", n.namespace, peer.namespace, n.status())
		}
	}
}

type logWriter struct {
	t      *testing.T
	prefix string
}

func (w *logWriter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("DATA RACE")) || bytes.Contains(p, []byte("panic:")) {
		w.t.Errorf("%s: %s", w.prefix, p)
	}
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "%s: %s", w.prefix, p)
	}
	return len(p), nil
}
