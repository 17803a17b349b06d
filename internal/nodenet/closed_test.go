package nodenet_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// run runs a command in a namespace.
func (l *lab) run(namespace string, command ...string) {
	l.t.Helper()
	l.must(inside(namespace, func() error {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", command, err, out)
		}
		return nil
	}))
}

// closed checks that nothing answers at an address, by the count of packets that a rule drops for a workload.
func (l *lab) closed(from, network, addr, workload, rule string) {
	l.t.Helper()
	before := l.dropped(workload, rule)
	err := inside(from, func() error {
		conn, err := net.DialTimeout(network, addr, 50*time.Millisecond)
		if err != nil {
			return err
		}
		defer conn.Close()
		if network == "udp" {
			_, err = conn.Write([]byte("hi\n"))
			return errors.Join(err, errors.New("an answer is not awaited"))
		}
		return nil
	})
	if err == nil {
		l.t.Errorf("%s from %q is open", addr, from)
	}
	eventually(l.t, func() error {
		if l.dropped(workload, rule) == before {
			return fmt.Errorf("%s from %q: rule %s counts nothing for %s: %w", addr, from, rule, workload, err)
		}
		return nil
	})
}

// dropped counts the packets that a rule has dropped for a workload.
func (l *lab) dropped(workload, rule string) uint64 {
	l.t.Helper()
	drops, err := l.network.Drops()
	l.must(err)
	for _, d := range drops {
		if d.Owner == workload && d.Rule == rule && d.Reason != "" {
			return d.Packets
		}
	}
	return 0
}

func (l *lab) open(from, network, addr, uid string) {
	l.t.Helper()
	if got, _, err := ask(from, network, addr); err != nil || got != uid {
		l.t.Errorf("%s %s from %q: %q answers, %v", network, addr, from, got, err)
	}
}

// A neighbour that adds a route to the node's subnet reaches published ports and nothing else, and the machine carries
// no packets for others that it would not carry without us.
func TestNeighbourReachesOnlyPublishedPorts(t *testing.T) {
	l := newLab(t)
	l.attach("a", "web", tcp(8080, insidePort))
	l.attach("b", "db")
	listener, err := net.Listen("tcp", ":9000")
	l.must(err)
	defer listener.Close()
	l.run(l.outside, "ip", "route", "add", "10.64.0.0/10", "via", here4)
	l.run(l.outside, "ip", "-6", "route", "add", "fd00:64::/48", "via", here6)
	l.open(l.outside, "tcp", here4+":8080", "a")
	l.open(l.outside, "tcp", "["+here6+"]:8080", "a")
	for _, addr := range []string{"10.64.3.2:8000", "[fd00:64:0:3::2]:8000"} {
		l.closed(l.outside, "tcp", addr, "web", "unpublished")
		l.closed(l.outside, "udp", addr, "web", "unpublished")
	}
	l.closed(l.outside, "tcp", "10.64.3.3:8000", "db", "unpublished")
	l.closed(l.outside, "tcp", "10.64.3.1:9000", "", "unpublished") // the bridge's own address
	l.closed(l.outside, "tcp", "[fd00:64:0:3::1]:9000", "", "unpublished")
}

// The machine carries packets between other networks only if it would without us.
func TestOtherNetworksStayApart(t *testing.T) {
	l := newLab(t)
	l.must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	l.attach("a", "web", tcp(8080, insidePort))
	other := l.connect("other", []string{"203.0.113.1/24", "2001:db8:1::1/64"}, []string{"203.0.113.2/24", "2001:db8:1::2/64"})
	for namespace, gateways := range map[string][]string{l.outside: {here4, here6}, other: {"203.0.113.1", "2001:db8:1::1"}} {
		for _, gateway := range gateways {
			l.run(namespace, "ip", "route", "add", "default", "via", gateway)
		}
	}
	l.serve(other, "other")
	eventually(t, func() error { _, _, err := ask(other, "tcp", "203.0.113.1:8080"); return err })
	for _, addr := range []string{"203.0.113.2:8000", "[2001:db8:1::2]:8000"} {
		if err := inside(l.outside, func() error {
			conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
			if err == nil {
				conn.Close()
			}
			return err
		}); err == nil {
			t.Errorf("%s can be reached through this machine", addr)
		}
	}
	// Somebody makes this machine a router.
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		l.must(os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0))
	}
	defer os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0)
	defer os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("0"), 0)
	for _, addr := range []string{"203.0.113.2:8000", "[2001:db8:1::2]:8000"} {
		eventually(t, func() error { _, _, err := ask(l.outside, "tcp", addr); return err })
	}
}

// Replicas reach the resolver on the bridge and published ports, but neither the machine's own services nor link-local
// addresses.
func TestReplicasReachNoServicesOfTheMachine(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web", tcp(8080, insidePort))
	address(l, &netlink.Handle{}, "wire", "169.254.169.254/32")
	l.run(l.outside, "ip", "addr", "add", "169.254.1.1/16", "dev", "wire")
	l.run("", "ip", "route", "add", "169.254.0.0/16", "dev", "wire")
	for _, at := range []string{":9000", "10.64.3.1:53", "[fd00:64:0:3::1]:53"} {
		listener, err := net.Listen("tcp", at)
		l.must(err)
		defer listener.Close()
		go answerTCP(listener, "machine")
	}
	for _, addr := range []string{here4, "10.64.3.1", "169.254.169.254", "[" + here6 + "]", "[fd00:64:0:3::1]"} {
		l.closed(a.Namespace, "tcp", addr+":9000", "web", "host")
	}
	l.serve(l.outside, "outside")
	l.closed(a.Namespace, "tcp", "169.254.1.1:8000", "web", "link-local")
	l.open(a.Namespace, "tcp", "10.64.3.1:53", "machine")
	l.open(a.Namespace, "tcp", "[fd00:64:0:3::1]:53", "machine")
	l.open(a.Namespace, "tcp", here4+":8080", "a")
	l.must(inside(a.Namespace, func() error { return ping("10.64.3.1") }))
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil || !strings.Contains(string(out), "drop_link_local") {
		t.Errorf("people cannot read the rules: %v: %s", err, out)
	}
}

// ping sends an echo request and awaits the answer.
func ping(addr string) error {
	conn, err := net.Dial("ip4:icmp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte{8, 0, 0xf7, 0xfd, 0, 1, 0, 1}); err != nil { // with its checksum
		return err
	}
	_, err = conn.Read(make([]byte, 100))
	return err
}

// A replica cannot pretend to be another.
// The resolver knows programs of the machine by that.
func TestMachineReachesItselfByItsOwnAddress(t *testing.T) {
	l := newLab(t)
	l.attach("a", "web")                                         // which writes the rules
	l.run("", "ip", "addr", "add", "192.0.2.99/32", "dev", "lo") // the machine has others, too
	t.Cleanup(func() { l.run("", "ip", "addr", "del", "192.0.2.99/32", "dev", "lo") })
	listener, err := net.Listen("tcp", "10.64.3.1:53")
	l.must(err)
	defer listener.Close()
	go answerTCP(listener, "machine")
	if _, caller, err := ask("", "tcp", "10.64.3.1:53"); err != nil || caller != "10.64.3.1" {
		t.Errorf("the machine sees %q, %v", caller, err)
	}
}

func TestReplicasUseTheirOwnAddresses(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web")
	l.serve(l.outside, "outside")
	l.run(a.Namespace, "ip", "addr", "add", "192.0.2.9/32", "dev", "eth0")
	l.run(a.Namespace, "ip", "route", "replace", "default", "via", "10.64.3.1", "src", "192.0.2.9")
	l.closed(a.Namespace, "tcp", there4+":8000", "", "spoofed")
}

// Namespaces are closed to each other, but not for those that use published ports.
func TestNamespacesAreClosed(t *testing.T) {
	for _, setting := range []string{"0", "1"} { // whether rules see bridged packets
		t.Run("bridge-nf-call-iptables="+setting, func(t *testing.T) {
			l := newLab(t)
			if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte(setting), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			defer os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0)
			web := l.attachIn("shop", "web", "web")
			l.attachIn("shop", "api", "api")
			spy := l.attachIn("other", "spy", "spy")
			l.attachIn("other", "open", "open", tcp(8080, insidePort))
			for _, addr := range []string{"10.64.3.3:8000", "[fd00:64:0:3::3]:8000"} {
				for _, network := range []string{"tcp", "udp"} {
					l.open(web.Namespace, network, addr, "api")
					l.closed(spy.Namespace, network, addr, "spy", "namespace")
				}
			}
			l.open(web.Namespace, "tcp", here4+":8080", "open")
			l.closed(web.Namespace, "tcp", "10.64.3.5:8000", "web", "namespace")
			// A replica that sends frames to the other itself gets no further.
			l.run(spy.Namespace, "ip", "route", "add", "10.64.3.3/32", "dev", "eth0")
			if err := inside(spy.Namespace, func() error {
				conn, err := net.DialTimeout("tcp", "10.64.3.3:8000", 50*time.Millisecond)
				if err == nil {
					conn.Close()
				}
				return err
			}); err == nil {
				t.Error("a replica reaches another namespace by the bridge")
			}
		})
	}
}

// Replicas of one namespace reach each other on different nodes, under their own addresses. Other nodes' replicas reach
// nothing else here, and nothing leaves unencrypted while the mesh has no route.
func TestNamespacesAcrossNodes(t *testing.T) {
	l := newLab(t)
	web := l.attachIn("shop", "web", "web", tcp(8080, insidePort))
	l.attachIn("other", "db", "db")
	l.must(l.network.SetRanges(nodenet.Ranges{Replicas: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("fd00:64::/48")}}))
	node := l.connectNode()
	l.serve(node, "remote")
	remote := []netip.Addr{netip.MustParseAddr("10.64.4.2"), netip.MustParseAddr("fd00:64:0:4::2")}
	l.must(l.network.UpdateReplicas(map[netip.Addr]string{remote[0]: "shop", remote[1]: "shop"}, nil))
	for _, addr := range []string{"10.64.3.2:8000", "[fd00:64:0:3::2]:8000"} {
		eventually(t, func() error { _, _, err := ask(node, "tcp", addr); return err })
		if _, caller, _ := ask(node, "tcp", addr); !slices.Contains([]string{"10.64.4.2", "fd00:64:0:4::2"}, caller) {
			t.Errorf("the caller appears as %s", caller)
		}
	}
	l.open(web.Namespace, "tcp", "10.64.4.2:8000", "remote")
	l.open(web.Namespace, "tcp", "[fd00:64:0:4::2]:8000", "remote")
	l.open("", "tcp", "10.64.4.2:8000", "remote")
	l.closed(node, "tcp", "10.64.3.3:8000", "", "namespace")
	listener, err := net.Listen("tcp", "10.64.3.1:9000")
	l.must(err)
	defer listener.Close()
	if err := inside(node, func() error {
		_, err := net.DialTimeout("tcp", "10.64.3.1:9000", 50*time.Millisecond)
		return err
	}); err == nil {
		t.Error("a replica of another node reaches services of this machine")
	}
	var connected net.Conn
	l.must(inside(web.Namespace, func() (err error) { connected, err = net.Dial("tcp", "10.64.4.2:8000"); return err }))
	defer connected.Close()
	l.run("", "ip", "route", "add", "default", "via", there4)
	l.routeNode("del")
	before := l.dropped("web", "no-path")
	_, err = connected.Write([]byte("hi\n"))
	l.must(err)
	eventually(t, func() error {
		if l.dropped("web", "no-path") == before {
			return errors.New("packets of a connection whose route is gone are not dropped")
		}
		return nil
	})
	l.routeNode("add")
	l.must(l.network.ReplaceReplicas(nil))
	l.closed(web.Namespace, "tcp", "10.64.4.2:8000", "web", "namespace")
	l.routeNode("del")
	l.closed(web.Namespace, "tcp", "10.64.4.2:8000", "web", "no-path")
}

// connectNode creates another node behind the mesh, with a replica at .2 and its own address at .1.
func (l *lab) connectNode() (namespace string) {
	l.t.Helper()
	node := l.connect("cm-testtest", []string{"10.64.3.1/32", "fd00:64:0:3::1/128"}, []string{"10.64.4.2/32", "10.64.4.1/32", "fd00:64:0:4::2/128", "fd00:64:0:4::1/128"})
	l.routeNode("add")
	l.run(node, "ip", "route", "add", "10.64.3.0/24", "dev", "cm-testtest", "src", "10.64.4.2")
	l.run(node, "ip", "route", "add", "fd00:64:0:3::/64", "dev", "cm-testtest", "src", "fd00:64:0:4::2")
	// There is no WireGuard here to find the way without neighbour discovery.
	for _, addr := range []string{"10.64.3.2", "10.64.3.3", "10.64.3.1", "fd00:64:0:3::2", "fd00:64:0:3::3", "fd00:64:0:3::1"} {
		l.run(node, "ip", "neigh", "add", addr, "dev", "cm-testtest", "lladdr", hardwareAddr(l, "cm-testtest"))
	}
	return node
}

// routeNode adds or deletes the routes to the other node.
func (l *lab) routeNode(what string) {
	l.t.Helper()
	l.run("", "ip", "route", what, "10.64.4.0/24", "dev", "cm-testtest", "src", "10.64.3.1")
	l.run("", "ip", "route", what, "fd00:64:0:4::/64", "dev", "cm-testtest", "src", "fd00:64:0:3::1")
}

func hardwareAddr(l *lab, name string) string {
	l.t.Helper()
	link, err := netlink.LinkByName(name)
	l.must(err)
	return link.Attrs().HardwareAddr.String()
}

// A port published at one address is neither taken nor answered at others.
func TestPortBoundToOneAddress(t *testing.T) {
	l := newLab(t)
	bind := func(addr string) nodenet.Port {
		return nodenet.Port{Protocol: "tcp", Address: netip.MustParseAddr(addr), Host: 8080, Inside: insidePort}
	}
	l.attach("a", "web", bind(here4))
	l.attach("b", "db", bind("127.0.0.1"))
	l.attach("c", "six", bind(here6))
	l.open(l.outside, "tcp", here4+":8080", "a")
	l.open("", "tcp", "127.0.0.1:8080", "b")
	l.open(l.outside, "tcp", "["+here6+"]:8080", "c")
	if uid, _, err := ask("", "tcp", "[::1]:8080"); err == nil {
		t.Errorf("%s answers at [::1]", uid)
	}
	for _, taken := range []nodenet.Port{bind(here4), tcp(8080, insidePort)} {
		_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "d", Group: "late", Owner: "late", Ports: []nodenet.Port{taken}})
		if _, ok := errors.AsType[*nodenet.PortError](err); !ok {
			t.Errorf("port %v is given twice: %v", taken, err)
		}
	}
	_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "d", Group: "late", Ports: []nodenet.Port{bind("192.0.2.77")}})
	if err == nil || !strings.Contains(err.Error(), "does not have that address") {
		t.Errorf("an address of another machine: %v", err)
	}
}

// Ports that the machine is managed through cannot be published.
func TestPortsOfTheMachineStay(t *testing.T) {
	l := newLab(t)
	for _, port := range []uint16{22, 4443} {
		_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "a", Ports: []nodenet.Port{tcp(port, 80)}})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d cannot be published", port)) {
			t.Errorf("port %d: %v", port, err)
		}
	}
}
