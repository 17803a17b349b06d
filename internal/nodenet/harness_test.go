package nodenet_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// TestMain runs the tests in a network namespace and a mount namespace from which nothing
// of the real machine can be reached.
func TestMain(m *testing.M) {
	const inside = "CLOUDLESS_NODENET_TEST"
	if os.Getenv(inside) != "" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	self := exec.Command("/proc/self/exe", os.Args[1:]...)
	self.Env = append(os.Environ(), inside+"=1")
	self.Stdin, self.Stdout, self.Stderr = os.Stdin, os.Stdout, os.Stderr
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:   syscall.CLONE_NEWNET,
		Unshareflags: syscall.CLONE_NEWNS, // which also makes mounts private
		Pdeathsig:    syscall.SIGKILL,
	}
	runtime.LockOSThread() // the death of this thread would count as that of the process
	err := self.Run()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "these tests need a machine that lets them make namespaces:", err)
		os.Exit(1)
	}
}

var (
	subnets = nodenet.Subnets{V4: netip.MustParsePrefix("10.64.3.0/24"), V6: netip.MustParsePrefix("fd00:64:0:3::/64")}
	// The machine's own address and that of another one outside.
	here4, there4 = "198.51.100.1", "198.51.100.2"
	here6, there6 = "2001:db8::1", "2001:db8::2"
)

// lab is this machine with a node's network, and another machine outside.
type lab struct {
	t       testing.TB
	opts    nodenet.Options
	network *nodenet.Network
	outside string // path of the other machine's namespace
	events  *events
	stop    func()
}

func newLab(t testing.TB) *lab {
	t.Helper()
	return newLabWith(t, func(*nodenet.Options) {})
}

// newLabWith lets set change the options.
func newLabWith(t testing.TB, set func(*nodenet.Options)) *lab {
	t.Helper()
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	l := &lab{t: t, opts: nodenet.Options{
		ID: "testtest", Mesh: "cm-testtest", APIPort: 4443, DataDir: filepath.Join(t.TempDir(), "data"), RunDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}}
	set(&l.opts)
	l.connectOutside()
	t.Cleanup(func() { l.check(nodenet.Clear(l.opts)) })
	l.start()
	l.check(l.network.Configure(subnets))
	return l
}

// start starts the network, like a new process.
func (l *lab) start() {
	l.t.Helper()
	n, err := nodenet.Open(l.opts)
	l.check(err)
	l.keep(n)
}

// keep runs an opened network.
func (l *lab) keep(n *nodenet.Network) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	e := &events{changed: make(chan struct{}, 1)}
	go func() { done <- n.Run(ctx, e.add) }()
	l.network, l.events = n, e
	l.stop = sync.OnceFunc(func() {
		cancel()
		l.check(<-done)
		n.Close()
	})
	l.t.Cleanup(l.stop)
}

// restart is a new process on what the old one has left.
func (l *lab) restart() {
	l.t.Helper()
	l.stop()
	l.start()
}

func (l *lab) check(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Error(err)
	}
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// connectOutside creates the other machine and the link to it.
func (l *lab) connectOutside() {
	l.t.Helper()
	loopback, err := netlink.LinkByName("lo")
	l.must(err)
	l.must(netlink.LinkSetUp(loopback))
	l.outside = l.connect("wire", []string{here4 + "/24", here6 + "/64"}, []string{there4 + "/24", there6 + "/64"})
}

// connect creates a namespace with a link to this one, which has the same name in both, and returns its path.
func (l *lab) connect(wire string, ours, theirs []string) string {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), wire)
	l.must(os.WriteFile(path, nil, 0o400))
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
		}
		made <- err
	}()
	l.must(<-made)
	ns, err := netns.GetFromPath(path)
	l.must(err)
	defer ns.Close()
	there, err := netlink.NewHandleAt(ns)
	l.must(err)
	defer there.Close()
	loopback, err := there.LinkByName("lo") // package net looks for ::1 before it uses IPv6
	l.must(err)
	l.must(there.LinkSetUp(loopback))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = wire
	l.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: wire, PeerNamespace: netlink.NsFd(int(ns))}))
	l.t.Cleanup(func() {
		if link, err := netlink.LinkByName(wire); err == nil {
			l.check(netlink.LinkDel(link))
		}
		l.check(unix.Unmount(path, unix.MNT_DETACH))
	})
	address(l, &netlink.Handle{}, wire, ours...)
	address(l, there, wire, theirs...)
	return path
}

func address(l *lab, h *netlink.Handle, name string, addresses ...string) {
	l.t.Helper()
	link, err := h.LinkByName(name)
	l.must(err)
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		l.must(err)
		if addr.IP.To4() == nil {
			addr.Flags = unix.IFA_F_NODAD
		}
		l.must(h.AddrAdd(link, addr))
	}
	l.must(h.LinkSetUp(link))
}

// inside calls f in a network namespace, in that of this machine if path is empty.
func inside(path string, f func() error) error {
	if path == "" {
		return f()
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// attach attaches an endpoint with a program that answers with the endpoint's uid and the
// caller's address, by TCP and UDP.
func (l *lab) attach(uid, group string, ports ...nodenet.Port) nodenet.Attachment {
	l.t.Helper()
	return l.attachIn("", uid, group, ports...)
}

// attachIn is attach in a namespace.
func (l *lab) attachIn(namespace, uid, group string, ports ...nodenet.Port) nodenet.Attachment {
	l.t.Helper()
	a, err := l.network.Attach(context.Background(),
		nodenet.Endpoint{UID: uid, Hostname: uid, Group: group, Owner: group, Namespace: namespace, Ports: ports})
	l.must(err)
	l.serve(a.Namespace, uid)
	l.must(l.network.Serve(uid))
	return a
}

// insidePort is where the programs listen.
const insidePort = 8000

func (l *lab) serve(namespace, uid string) {
	l.t.Helper()
	l.must(inside(namespace, func() error {
		listener, err := net.Listen("tcp", fmt.Sprintf(":%d", insidePort))
		if err != nil {
			return err
		}
		packets, err := net.ListenPacket("udp", fmt.Sprintf(":%d", insidePort))
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		var served sync.WaitGroup
		served.Go(func() { answerTCP(listener, uid) })
		served.Go(func() { answerUDP(packets, uid) })
		l.t.Cleanup(func() {
			listener.Close()
			packets.Close()
			served.Wait()
		})
		return nil
	}))
}

func answerTCP(listener net.Listener, uid string) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
				fmt.Fprintf(conn, "%s %s %s\n", uid, host, lines.Text())
			}
		}()
	}
}

func answerUDP(packets net.PacketConn, uid string) {
	buffer := make([]byte, 1024)
	for {
		size, peer, err := packets.ReadFrom(buffer)
		if err != nil {
			return
		}
		host, _, _ := net.SplitHostPort(peer.String())
		_, _ = packets.WriteTo(fmt.Appendf(nil, "%s %s %s\n", uid, host, buffer[:size]), peer)
	}
}

// ask sends to an address from a namespace; the answer is "uid caller text".
func ask(namespace, network, addr string) (uid, caller string, err error) {
	err = inside(namespace, func() error {
		conn, err := net.DialTimeout(network, addr, 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		uid, caller, err = speak(conn)
		return err
	})
	return uid, caller, err
}

func speak(conn net.Conn) (uid, caller string, err error) {
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(conn, "hi\n"); err != nil {
		return "", "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", "", err
	}
	uid, rest, _ := strings.Cut(line, " ")
	caller, _, _ = strings.Cut(rest, " ")
	return uid, caller, nil
}

// events are the network's events.
type events struct {
	changed chan struct{}
	mu      sync.Mutex
	list    []nodenet.Event
}

func (e *events) add(event nodenet.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, event)
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// await returns the first event with that reason.
func (e *events) await(t *testing.T, reason string) nodenet.Event {
	t.Helper()
	timeout := time.After(10 * time.Minute)
	for {
		e.mu.Lock()
		for _, event := range e.list {
			if event.Reason == reason {
				e.mu.Unlock()
				return event
			}
		}
		e.mu.Unlock()
		select {
		case <-e.changed:
		case <-timeout:
			t.Fatalf("there was no event %s", reason)
		}
	}
}

// eventually tries until it succeeds.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func tcp(host, inside uint16) nodenet.Port {
	return nodenet.Port{Protocol: "tcp", Host: host, Inside: inside}
}
