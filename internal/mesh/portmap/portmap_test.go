package portmap

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The machine of these tests is a process in a network namespace of its own: this test binary again.
const machineEnv = "PORTMAP_TEST_PROTOCOL"

func TestMain(m *testing.M) {
	if protocol := os.Getenv(machineEnv); protocol != "" {
		runMachine(protocol)
		return
	}
	os.Exit(m.Run())
}

const port = 7701

// runMachine maps a port by one protocol until its input ends, and prints every change.
func runMachine(name string) {
	ctx, cancel := context.WithCancel(context.Background())
	var m *Mapper
	m = New(func() uint16 { return port }, func() { fmt.Println(m.Mapped()) }, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	m.protocols = slices.DeleteFunc(slices.Clone(allProtocols), func(p protocol) bool { return p.name != name })
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	m.Run(ctx)
}

// home is a machine behind a router that runs Debian's miniupnpd, and a neighbour on the internet. Their addresses are
// not those of documentation, because miniupnpd does not take those for public ones.
type home struct {
	t    *testing.T
	name string
}

func newHome(t *testing.T, config string) *home {
	t.Helper()
	if os.Getuid() != 0 || testing.Short() {
		t.Skip("network namespaces need root")
	}
	t.Parallel()
	h := &home{t, fmt.Sprintf("portmap%d-%s", os.Getpid(), strings.ToLower(t.Name()[len("TestRouterMapsPortBy"):]))}
	for _, name := range []string{"internet", "router", "machine"} {
		h.run("ip", "netns", "add", h.space(name))
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", h.space(name)).Run() })
		h.ip(name, "link set lo up")
	}
	h.cable("internet", "eth0", "45.0.0.1/24", "router", "eth0", "45.0.0.2/24")
	h.cable("machine", "eth0", "192.168.7.2/24", "router", "home", "192.168.7.1/24")
	h.ip("machine", "route add default via 192.168.7.1")
	h.in("router", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	h.in("router", "nft", "table inet filter { chain forward { type filter hook forward priority 0; iifname home accept; ct state established accept; jump miniupnpd; iifname eth0 drop; }; "+
		"chain miniupnpd { }; chain prerouting { type nat hook prerouting priority -100; jump prerouting_miniupnpd; }; chain prerouting_miniupnpd { }; "+
		"chain postrouting { type nat hook postrouting priority 100; jump postrouting_miniupnpd; oifname eth0 masquerade; }; chain postrouting_miniupnpd { }; }")
	h.startRouter(config)
	return h
}

func (h *home) startRouter(config string) {
	h.t.Helper()
	dir := h.t.TempDir()
	file := filepath.Join(dir, "miniupnpd.conf")
	config += "\next_ifname=eth0\nlistening_ip=home\nsecure_mode=yes\nsystem_uptime=yes\nuuid=a7ca4bd5-6d5c-4d1c-9a1f-0d6a6f1f2c4e\n"
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		h.t.Fatal(err)
	}
	daemon := exec.Command("ip", "netns", "exec", h.space("router"), "miniupnpd", "-d", "-f", file, "-P", filepath.Join(dir, "pid"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		h.t.Fatal(err)
	}
	daemon.Stdout, daemon.Stderr = log, log
	if err := daemon.Start(); err != nil {
		h.t.Fatalf("start miniupnpd (Debian package miniupnpd-nftables): %v", err)
	}
	ended := make(chan struct{})
	go func() { _ = daemon.Wait(); close(ended) }()
	h.t.Cleanup(func() {
		_ = daemon.Process.Kill()
		<-ended
		if said, _ := os.ReadFile(log.Name()); h.t.Failed() {
			h.t.Logf("miniupnpd says:\n%s", said)
		}
	})
	for { // until it listens
		select {
		case <-ended:
			h.t.Fatal("miniupnpd does not start")
		default:
		}
		out := h.in("router", "ss", "-Hlun")
		if strings.Contains(out, ":1900") || strings.Contains(out, ":5351") {
			return
		}
	}
}

func (h *home) space(name string) string { return h.name + name }

func (h *home) run(name string, args ...string) string {
	h.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (h *home) ip(space, command string) {
	h.t.Helper()
	h.run("ip", append([]string{"-n", h.space(space)}, strings.Fields(command)...)...)
}

func (h *home) in(space string, args ...string) string {
	h.t.Helper()
	return h.run("ip", append([]string{"netns", "exec", h.space(space)}, args...)...)
}

func (h *home) cable(a, linkA, addressA, b, linkB, addressB string) {
	h.t.Helper()
	h.ip(a, "link add "+linkA+" type veth peer name "+linkB+" netns "+h.space(b))
	for _, end := range [][3]string{{a, linkA, addressA}, {b, linkB, addressB}} {
		h.ip(end[0], "address add "+end[2]+" dev "+end[1])
		h.ip(end[0], "link set "+end[1]+" up")
	}
}

// listen opens a UDP socket in a namespace.
func (h *home) listen(space, address string) (conn net.PacketConn) {
	h.t.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and the thread ends with the goroutine, because it is in another namespace
		var there *os.File
		if there, err = os.Open("/run/netns/" + h.space(space)); err != nil {
			return
		}
		defer there.Close()
		if err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err == nil {
			conn, err = net.ListenPacket("udp4", address)
		}
	}()
	<-done
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// mapsPort maps the port, receives a packet from the internet, and ends.
func (h *home) mapsPort(protocol string) {
	h.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	before := h.in("router", "nft", "list", "ruleset")
	machine := exec.Command("ip", "netns", "exec", h.space("machine"), exe)
	machine.Env = append(os.Environ(), machineEnv+"="+protocol)
	machine.Stderr = os.Stderr
	in, err := machine.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := machine.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := machine.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = machine.Process.Kill(); _ = machine.Wait() })
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		h.t.Fatal("the machine ended")
	}
	mapped, err := netip.ParseAddrPort(lines.Text())
	if err != nil || mapped.Addr().String() != "45.0.0.2" {
		h.t.Fatalf("the port is mapped to %q", lines.Text())
	}
	receiver, sender := h.listen("machine", fmt.Sprintf("0.0.0.0:%d", port)), h.listen("internet", "45.0.0.1:0")
	if _, err := sender.WriteTo([]byte("hello"), net.UDPAddrFromAddrPort(mapped)); err != nil {
		h.t.Fatal(err)
	}
	buffer := make([]byte, 100)
	if n, from, err := receiver.ReadFrom(buffer); err != nil || string(buffer[:n]) != "hello" || from.String() != sender.LocalAddr().String() {
		h.t.Errorf("the machine received %q from %v: %v", buffer[:n], from, err)
	}
	_ = in.Close()
	for lines.Scan() { // until it has ended
	}
	if after := h.in("router", "nft", "list", "ruleset"); after != before {
		h.t.Errorf("the router still has the mapping:\n%s", after)
	}
}

func TestRouterMapsPortByPCP(t *testing.T) {
	newHome(t, "enable_natpmp=yes\nenable_upnp=no").mapsPort("PCP")
}

func TestRouterMapsPortByNATPMP(t *testing.T) {
	newHome(t, "enable_natpmp=yes\nenable_upnp=no").mapsPort("NAT-PMP")
}

func TestRouterMapsPortByUPnP(t *testing.T) {
	newHome(t, "enable_natpmp=no\nenable_upnp=yes").mapsPort("UPnP")
}
