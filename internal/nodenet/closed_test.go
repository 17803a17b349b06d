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
	l.closed(l.outside, "tcp", "10.64.3.99:8000", "", "unpublished") // nobody has the address
	l.closed(l.outside, "tcp", "10.64.3.1:9000", "", "unpublished")  // the bridge's own address
	l.closed(l.outside, "tcp", "[fd00:64:0:3::1]:9000", "", "unpublished")
	if out, err := exec.Command("nft", "list", "set", "inet", "cloudless_testtest", "drops4").CombinedOutput(); err != nil || strings.Contains(string(out), "10.64.3.99") {
		t.Errorf("neighbours fill the set of counters: %v: %s", err, out)
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

// Replicas call routes of their own node as anybody does, while the ingress answers and as far as their egress rules allow.
func TestReplicasReachTheIngressOfTheirNode(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web")
	listener, err := net.Listen("tcp", ":9000")
	l.must(err)
	defer listener.Close()
	go answerTCP(listener, "ingress")
	l.closed(a.Namespace, "tcp", here4+":9000", "web", "host")
	l.must(l.network.SetIngress([]nodenet.Port{{Protocol: "tcp", Host: 9000}, {Protocol: "udp", Host: 9001}}))
	l.open(a.Namespace, "tcp", here4+":9000", "ingress")
	l.open(a.Namespace, "tcp", "["+here6+"]:9000", "ingress")
	l.closed(a.Namespace, "udp", here4+":9000", "web", "host")
	for _, addr := range []string{"10.64.3.1", "[fd00:64:0:3::1]"} {
		l.closed(a.Namespace, "tcp", addr+":9000", "web", "host")
	}
	l.run("", "nft", "flush", "ruleset")
	eventually(t, func() error {
		got, _, err := ask(a.Namespace, "tcp", here4+":9000")
		if err == nil && got != "ingress" {
			return fmt.Errorf("%q answers", got)
		}
		return err
	})
	_, err = l.network.SetEgress("a", &nodenet.Egress{})
	l.must(err)
	l.closed(a.Namespace, "tcp", here4+":9000", "web", "egress")
	_, err = l.network.SetEgress("a", nil)
	l.must(err)
	l.must(l.network.SetIngress(nil))
	l.closed(a.Namespace, "tcp", here4+":9000", "web", "host")
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

// The resolver recognizes programs of the machine by the source address, which must stay the address that they asked.
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
	l.closed(node, "tcp", "10.64.3.3:8000", "db", "namespace") // which is the receiver
	listener, err := net.Listen("tcp", "10.64.3.1:9000")
	l.must(err)
	defer listener.Close()
	l.closed(node, "tcp", "10.64.3.1:9000", "", "host")
	l.run(node, "ip", "route", "add", there4+"/32", "dev", "cm-testtest", "src", "10.64.4.2")
	l.run(node, "ip", "neigh", "add", there4, "dev", "cm-testtest", "lladdr", hardwareAddr(l, "cm-testtest"))
	l.closed(node, "tcp", there4+":8000", "", "transit")
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
	// A program of the machine uses a service whose backend has no route.
	s := service("far", nodenet.Backend{Addresses: remote, Weight: 1})
	s.Addresses = []netip.Addr{netip.MustParseAddr("198.18.0.1")} // is routed like the internet
	l.must(l.network.SetServices([]nodenet.Service{s}))
	l.closed("", "tcp", "198.18.0.1:80", "", "no-path")
}

// Programs of a machine that listen on all addresses are not open to other nodes: neither to their programs, among them
// replicas with the network of their machine, nor to their replicas. Published ports and pings are.
func TestMachineIsClosedToOtherNodes(t *testing.T) {
	l := newLab(t)
	l.attach("a", "web", tcp(8080, insidePort))
	l.must(l.network.SetRanges(nodenet.Ranges{Replicas: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("fd00:64::/48")}}))
	node := l.connectNode()
	for _, at := range []string{"0.0.0.0:9000", "[::]:9001"} {
		listener, err := net.Listen("tcp", at)
		l.must(err)
		defer listener.Close()
		go answerTCP(listener, "machine")
	}
	for _, from := range []string{"1", "2"} { // the other node itself, and its replica
		l.run(node, "ip", "route", "replace", "10.64.3.0/24", "dev", "cm-testtest", "src", "10.64.4."+from)
		l.run(node, "ip", "-6", "route", "del", "fd00:64:0:3::/64", "dev", "cm-testtest")
		l.run(node, "ip", "-6", "route", "add", "fd00:64:0:3::/64", "dev", "cm-testtest", "src", "fd00:64:0:4::"+from)
		for _, addr := range []string{"10.64.3.1:9000", "10.64.3.1:9001", "[fd00:64:0:3::1]:9001"} {
			l.closed(node, "tcp", addr, "", "host")
		}
		l.closed(node, "udp", "10.64.3.1:53", "", "host")
		l.open(node, "tcp", "10.64.3.1:8080", "a")
		l.open(node, "tcp", "[fd00:64:0:3::1]:8080", "a")
		l.must(inside(node, func() error { return ping("10.64.3.1") }))
	}
}

// The chunks of the object store are open to other nodes, but to none of their replicas, and not to replicas here.
func TestChunksAreOpenToOtherNodesOnly(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web")
	l.must(l.network.SetRanges(nodenet.Ranges{Replicas: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10"), netip.MustParsePrefix("fd00:64::/48")}}))
	node := l.connectNode()
	addresses := []string{fmt.Sprintf("10.64.3.1:%d", nodenet.ChunkPort), fmt.Sprintf("[fd00:64:0:3::1]:%d", nodenet.ChunkPort)}
	for _, at := range addresses {
		listener, err := net.Listen("tcp", at)
		l.must(err)
		defer listener.Close()
		go answerTCP(listener, "chunks")
	}
	comeFrom := func(place string) {
		l.run(node, "ip", "route", "replace", "10.64.3.0/24", "dev", "cm-testtest", "src", "10.64.4."+place)
		l.run(node, "ip", "-6", "route", "del", "fd00:64:0:3::/64", "dev", "cm-testtest")
		l.run(node, "ip", "-6", "route", "add", "fd00:64:0:3::/64", "dev", "cm-testtest", "src", "fd00:64:0:4::"+place)
	}
	comeFrom("2") // a replica of the other node
	for _, addr := range addresses {
		l.closed(node, "tcp", addr, "", "host")
		l.closed(a.Namespace, "tcp", addr, "web", "host")
	}
	comeFrom("1") // the other node itself
	for _, addr := range addresses {
		l.open(node, "tcp", addr, "chunks")
	}
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
	for _, port := range []uint16{22, 53, 4443} {
		_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "a", Ports: []nodenet.Port{tcp(port, 80)}})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d cannot be published", port)) {
			t.Errorf("port %d: %v", port, err)
		}
	}
}

// Even if a port 53 was published once, the resolver keeps it at its own address.
func TestResolverKeepsItsPort(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web", tcp(8053, insidePort))
	for _, at := range []string{"10.64.3.1:53", "[fd00:64:0:3::1]:53"} {
		listener, err := net.Listen("tcp", at)
		l.must(err)
		defer listener.Close()
		go answerTCP(listener, "resolver")
	}
	l.stop()
	state, err := os.ReadFile(l.opts.DataDir + "/state.json")
	l.must(err)
	l.must(os.WriteFile(l.opts.DataDir+"/state.json", []byte(strings.ReplaceAll(string(state), "8053", "53")), 0o600))
	l.start()
	eventually(t, func() error { _, _, err := ask(l.outside, "tcp", here4+":53"); return err })
	for _, addr := range []string{"10.64.3.1:53", "[fd00:64:0:3::1]:53"} {
		l.open(a.Namespace, "tcp", addr, "resolver")
		l.open("", "tcp", addr, "resolver")
	}
}
