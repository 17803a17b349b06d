package nodenet_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cloudless/cloudless/internal/nodenet"
)

var (
	vip4, vip6    = netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:64:ffff::10")
	serviceRanges = nodenet.Ranges{
		Replicas: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/16"), netip.MustParsePrefix("fd00:64:0::/48")},
		Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:64:ffff::/64")},
	}
	virtual = []string{"10.96.0.10:80", "[fd00:64:ffff::10]:80"}
)

// service has port 80 of TCP and UDP.
func service(id string, to ...nodenet.Backend) nodenet.Service {
	s := nodenet.Service{ID: id, Group: id, Owner: id, Addresses: []netip.Addr{vip4, vip6}, Backends: to}
	for _, protocol := range []string{"tcp", "udp"} {
		s.Ports = append(s.Ports, nodenet.ServicePort{Protocol: protocol, Port: 80, Target: insidePort})
	}
	return s
}

// backend is an attachment with a weight.
func backend(a nodenet.Attachment, weight uint32) nodenet.Backend {
	return nodenet.Backend{Addresses: a.Addresses, Weight: weight}
}

func newServiceLab(t testing.TB) *lab {
	t.Helper()
	l := newLab(t)
	l.must(l.network.SetRanges(serviceRanges))
	return l
}

// answers counts who answers at an address.
func (l *lab) answers(from, network, addr string, times int) map[string]int {
	l.t.Helper()
	seen := map[string]int{}
	for range times {
		uid, _, err := ask(from, network, addr)
		l.must(err)
		seen[uid]++
	}
	return seen
}

// A virtual address leads to the service's backends from other replicas, from a backend itself and from the machine.
// Inside the cluster the backend sees the client's own address.
func TestServiceIsReachedByItsVirtualAddress(t *testing.T) {
	for _, setting := range []string{"0", "1"} {
		t.Run("bridge-nf-call-iptables="+setting, func(t *testing.T) {
			l := newServiceLab(t)
			bridged(t, setting)
			client, api := l.attach("client", "client"), l.attach("api", "api")
			l.must(l.network.UpdateServices([]nodenet.Service{service("api.shop", backend(api, 1))}, nil))
			for i, addr := range virtual {
				for _, network := range []string{"tcp", "udp"} {
					uid, caller, err := ask(client.Namespace, network, addr)
					if err != nil || uid != "api" || caller != client.Addresses[i].String() {
						t.Errorf("%s %s: %s sees %s, %v", network, addr, uid, caller, err)
					}
					l.open(api.Namespace, network, addr, "api")
					l.open("", network, addr, "api")
				}
			}
			readable(t)
		})
	}
}

// bridged sets whether rules see bridged packets.
func bridged(t *testing.T, value string) {
	t.Helper()
	set := func(value string) {
		cmd := exec.Command("sh", "-c", "for f in /proc/sys/net/bridge/bridge-nf-call-ip*tables; do [ ! -e $f ] || echo "+value+" > $f; done")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	set(value)
	t.Cleanup(func() { set("0") })
}

// readable checks that people can list the rules.
func readable(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil {
		t.Errorf("nft cannot list the rules: %v: %s", err, out)
	}
}

// A service without backends, or without the port, refuses at once instead of letting clients wait.
func TestServiceWithoutBackendsRefuses(t *testing.T) {
	l := newServiceLab(t)
	client, api := l.attach("client", "client"), l.attach("api", "api")
	refused := func(network, addr string) {
		t.Helper()
		for _, from := range []string{client.Namespace, ""} {
			eventually(t, func() error {
				_, _, err := ask(from, network, addr)
				// A process of the machine itself may not even send the datagram.
				if !errors.Is(err, syscall.ECONNREFUSED) && !(network == "udp" && from == "" && errors.Is(err, syscall.EPERM)) {
					return fmt.Errorf("%s %s from %q: %w", network, addr, from, err)
				}
				return nil
			})
		}
	}
	for _, network := range []string{"tcp", "udp"} {
		l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(api, 1))}, nil))
		l.open(client.Namespace, network, virtual[0], "api")
		refused(network, "10.96.0.10:81")
		refused(network, "10.96.0.11:80")
		l.must(l.network.UpdateServices([]nodenet.Service{service("api")}, nil))
		refused(network, virtual[0])
		refused(network, virtual[1])
		l.must(l.network.UpdateServices(nil, []string{"api"}))
		refused(network, virtual[0])
	}
}

// Weights divide connections, and the nearest backends get all of them as long as there are any.
func TestWeightsAndDistance(t *testing.T) {
	l := newServiceLab(t)
	client := l.attach("client", "client")
	a, b, c := l.attach("a", "api"), l.attach("b", "api"), l.attach("c", "api")
	set := func(list ...nodenet.Backend) {
		l.must(l.network.UpdateServices([]nodenet.Service{service("api", list...)}, nil))
	}
	at := func(distance int, a nodenet.Attachment) nodenet.Backend {
		return nodenet.Backend{Addresses: a.Addresses, Weight: 1000, Distance: distance}
	}
	set(backend(a, 9000), backend(b, 1000))
	if seen := l.answers(client.Namespace, "tcp", virtual[0], 300); seen["a"] < 230 || seen["b"] == 0 {
		t.Errorf("of weights 9 and 1 came %v", seen)
	}
	set(at(2, a), at(1, b), at(0, c))
	for _, addr := range virtual {
		if seen := l.answers(client.Namespace, "tcp", addr, 20); seen["c"] != 20 {
			t.Errorf("the nearest does not get all: %v", seen)
		}
	}
	set(at(2, a), at(1, b), nodenet.Backend{Addresses: c.Addresses})
	if seen := l.answers(client.Namespace, "tcp", virtual[0], 20); seen["b"] != 20 {
		t.Errorf("the zone does not get what the node cannot serve: %v", seen)
	}
	set(at(2, a))
	l.open(client.Namespace, "tcp", virtual[1], "a")
}

// A client with affinity stays with its backend, for all ports, until that takes no more connections. A nearer backend
// does not change that.
func TestAffinity(t *testing.T) {
	l := newServiceLab(t)
	client := l.attach("client", "client")
	replicas := map[string]nodenet.Attachment{}
	for _, uid := range []string{"a", "b", "c", "d", "e"} {
		replicas[uid] = l.attach(uid, "api")
	}
	weights := map[string]uint32{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
	set := func(distance int) {
		s := service("api")
		s.Affinity = time.Hour
		for uid, a := range replicas {
			s.Backends = append(s.Backends, nodenet.Backend{Addresses: a.Addresses, Weight: weights[uid], Distance: distance})
		}
		s.Backends = append(s.Backends, nodenet.Backend{Addresses: client.Addresses, Weight: uint32(distance)})
		l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
	}
	set(0)
	var chosen string
	for range 4 {
		chosen = ""
		for _, network := range []string{"tcp", "udp"} {
			seen := l.answers(client.Namespace, network, virtual[0], 20)
			for uid := range seen {
				if chosen == "" {
					chosen = uid
				}
				if uid != chosen {
					t.Fatalf("one client of %s gets %v after %s", network, seen, chosen)
				}
			}
		}
		weights[chosen] = 0 // it drains
		set(0)
	}
	if seen := l.answers(client.Namespace, "tcp", virtual[1], 20); len(seen) != 1 {
		t.Errorf("one client of IPv6 gets %v", seen)
	}
	before := l.answers(client.Namespace, "tcp", virtual[0], 1)
	set(1)
	if after := l.answers(client.Namespace, "tcp", virtual[0], 20); len(after) != 1 || !slices.Equal(slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after))) {
		t.Errorf("of %v a nearer backend took %v", before, after)
	}
	readable(t)
}

// A draining backend keeps its connections and gets no new ones. Datagrams of known flows go elsewhere once it is
// removed.
func TestDraining(t *testing.T) {
	l := newServiceLab(t)
	client, a, b := l.attach("client", "client"), l.attach("a", "api"), l.attach("b", "api")
	l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(a, 1))}, nil))
	stream, datagrams := l.dial(client.Namespace, "tcp", virtual[0]), l.dial(client.Namespace, "udp", virtual[0])
	says := func(conn net.Conn, want string) error {
		uid, _, err := speak(conn)
		if err == nil && uid != want {
			err = fmt.Errorf("%s answers, want %s", uid, want)
		}
		return err
	}
	l.must(says(stream, "a"))
	l.must(says(datagrams, "a"))
	l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(a, 0), backend(b, 1))}, nil))
	l.must(says(stream, "a"))
	l.must(says(datagrams, "a"))
	if seen := l.answers(client.Namespace, "tcp", virtual[0], 20); seen["b"] != 20 {
		t.Errorf("new connections go to %v", seen)
	}
	l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(b, 1))}, nil))
	l.must(says(stream, "a"))
	l.must(says(datagrams, "b"))
}

// A client may connect again from the port of a connection that a backend has reset, although the kernel still knows where that
// one led: once the backend is gone, another one answers.
func TestPortOfAResetConnectionLeadsToALiveBackend(t *testing.T) {
	l := newServiceLab(t)
	client, a, b := l.attach("client", "client"), l.attach("a", "api"), l.attach("b", "api")
	l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(a, 1))}, nil))
	first := l.dial(client.Namespace, "tcp", virtual[0])
	_, wrote := io.Copy(first, strings.NewReader(strings.Repeat("x", 1<<20))) // too long a line: the program resets the connection
	if _, err := io.Copy(io.Discard, first); err == nil && wrote == nil {
		t.Fatal("the connection was closed in order")
	}
	l.must(first.Close())
	l.must(l.network.Detach(t.Context(), "a"))
	l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(b, 1))}, nil))
	uid, _, err := speak(l.dialFrom(client.Namespace, first.LocalAddr(), "tcp", virtual[0]))
	if l.must(err); uid != "b" {
		t.Errorf("%s answers", uid)
	}
}

// dial connects from a namespace.
func (l *lab) dial(from, network, addr string) net.Conn {
	l.t.Helper()
	return l.dialFrom(from, nil, network, addr)
}

// dialFrom connects from an address in a namespace, or from any if it is nil.
func (l *lab) dialFrom(from string, local net.Addr, network, addr string) net.Conn {
	l.t.Helper()
	var conn net.Conn
	l.must(inside(from, func() (err error) {
		conn, err = (&net.Dialer{Timeout: 5 * time.Second, LocalAddr: local}).Dial(network, addr)
		return err
	}))
	l.t.Cleanup(func() { conn.Close() })
	return conn
}

// Other namespaces reach exported services, and no others.
func TestOnlyExportedServicesAreOpenToOtherNamespaces(t *testing.T) {
	l := newServiceLab(t)
	spy, api := l.attachIn("other", "spy", "spy"), l.attachIn("shop", "api", "api")
	friend := l.attachIn("shop", "friend", "friend")
	s := service("api.shop", backend(api, 1))
	for _, exported := range []bool{false, true, false} {
		s.Exported = exported
		l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
		for _, addr := range virtual {
			l.open(friend.Namespace, "tcp", addr, "api")
			if exported {
				l.open(spy.Namespace, "tcp", addr, "api")
			} else {
				l.closed(spy.Namespace, "tcp", addr, "spy", "namespace")
			}
		}
	}
}

// A published port of a service answers on this node although its only backend is on another one, to which this node
// masquerades. It is held, and given up with the service.
func TestServicePublishedOnEveryNode(t *testing.T) {
	l := newServiceLab(t)
	node := l.connectNode()
	l.serve(node, "remote")
	remote := nodenet.Attachment{Addresses: []netip.Addr{netip.MustParseAddr("10.64.4.2"), netip.MustParseAddr("fd00:64:0:4::2")}}
	s := service("api", backend(remote, 1))
	s.Ports[0].Publish, s.Ports[1].Publish = 8080, 8080
	stranger, err := net.Listen("tcp", ":8080")
	l.must(err)
	l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
	if told := l.events.await(t, "PortTaken"); !strings.Contains(told.Message, "service api is not published on this node") {
		t.Errorf("the event is %q", told.Message)
	}
	l.must(stranger.Close())
	for _, network := range []string{"tcp", "udp"} {
		for from, addrs := range map[string][]string{l.outside: {here4, "[" + here6 + "]"}, "": {"127.0.0.1", "[::1]", here4}} {
			for _, addr := range addrs {
				eventually(t, func() error {
					uid, caller, err := ask(from, network, addr+":8080")
					if err == nil && (uid != "remote" || caller != "10.64.3.1" && caller != "fd00:64:0:3::1") {
						err = fmt.Errorf("%s %s: %s sees %s", network, addr, uid, caller)
					}
					return err
				})
			}
		}
	}
	if late, err := net.Listen("tcp", ":8080"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the port is not held: %v", err)
		late.Close()
	}
	l.must(l.network.UpdateServices(nil, []string{"api"}))
	free, err := net.Listen("tcp", ":8080")
	l.must(err)
	l.must(free.Close())
}

// A service that is published at one address answers there and nowhere else, once the machine has the address. Where a
// replica publishes the same port, the service takes over and gives it back.
func TestServicePublishedAtOneAddress(t *testing.T) {
	l := newServiceLab(t)
	l.attach("api", "api", tcp(8080, insidePort))
	other := l.attach("other", "other")
	s := nodenet.Service{
		ID: "api.shop", Group: "api", Backends: []nodenet.Backend{backend(other, 1)},
		Ports: []nodenet.ServicePort{
			{Protocol: "tcp", Target: insidePort, Publish: 8080},
			{Protocol: "tcp", Target: insidePort, Publish: 9090, PublishAddress: netip.MustParseAddr("198.51.100.7")},
		},
	}
	l.open(l.outside, "tcp", here4+":8080", "api")
	l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
	l.open(l.outside, "tcp", here4+":8080", "other")
	l.run("", "ip", "address", "add", "198.51.100.7/24", "dev", "wire")
	eventually(t, func() error { _, _, err := ask(l.outside, "tcp", "198.51.100.7:9090"); return err })
	eventually(t, func() error { // it is held
		free, err := net.Listen("tcp", "198.51.100.7:9090")
		if err == nil {
			return errors.Join(errors.New("another program can have the port"), free.Close())
		}
		return nil
	})
	if _, _, err := ask(l.outside, "tcp", here4+":9090"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("at another address: %v", err)
	}
	s.Backends = nil
	l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
	l.open(l.outside, "tcp", here4+":8080", "api")

	// A workload that is created again under the same name is another group.
	l.must(l.network.Detach(t.Context(), "api"))
	s.Group = "again"
	l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
	l.attach("late", "again", tcp(8080, insidePort))
	l.open(l.outside, "tcp", here4+":8080", "late")
}

// Programs that check the machine name a foreign rule that drops what comes in by a service's published port.
func TestObstacleOfPublishedService(t *testing.T) {
	l := newServiceLab(t)
	api := l.attach("api", "api")
	s := nodenet.Service{ID: "api.shop", Backends: []nodenet.Backend{backend(api, 1)}, Ports: []nodenet.ServicePort{{Protocol: "tcp", Target: insidePort, Publish: 8080}}}
	l.must(l.network.UpdateServices([]nodenet.Service{s}, nil))
	nft(t, fmt.Sprintf("table inet fw { chain f { type filter hook forward priority 0; tcp dport %d drop; }; }", insidePort))
	defer nft(t, "delete table inet fw")
	found, err := nodenet.Obstacles(t.Context())
	if err != nil || len(found) != 1 || !strings.Contains(found[0].Sentence, "in chain f of table inet fw drops what comes in by published port 8080") {
		t.Errorf("found %v, %v", found, err)
	}
}

// A new process that gets its services before it runs never lacks them, and a flushed table comes back with them.
func TestServicesSurviveRestartsAndFlushes(t *testing.T) {
	l := newServiceLab(t)
	client, api := l.attach("client", "client"), l.attach("api", "api")
	all := []nodenet.Service{service("api", backend(api, 1))}
	l.must(l.network.UpdateServices(all, nil))
	conn := l.dial(client.Namespace, "tcp", virtual[0])
	l.stop()
	l.open(client.Namespace, "tcp", virtual[0], "api") // while no process runs
	n, err := nodenet.Open(l.opts)
	l.must(err)
	l.must(n.SetServices(all))
	l.keep(n)
	for range 50 {
		l.open(client.Namespace, "tcp", virtual[0], "api")
	}
	if _, _, err := speak(conn); err != nil {
		t.Errorf("a connection did not survive: %v", err)
	}
	for _, harm := range []string{
		"flush ruleset", "flush map inet cloudless_testtest slots4_service_api_tcp_80", "flush chain inet cloudless_testtest service_api_tcp_80",
		"flush map inet cloudless_testtest services4", "delete table inet cloudless_testtest",
	} {
		nft(t, harm)
		eventually(t, func() error { _, _, err := ask(client.Namespace, "tcp", virtual[0]); return err })
	}
}

// Everything that belongs to the machine itself is byte for byte as before once the network is cleared.
func TestClearLeavesForeignRules(t *testing.T) {
	l := newServiceLab(t)
	list := func() string {
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	nft(t, `table inet fw { set s { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 } }
		chain forward { type filter hook forward priority 0; ip saddr @s drop; }; chain nat { type nat hook postrouting priority 100; }; }`)
	defer nft(t, "delete table inet fw")
	api := l.attach("api", "api", tcp(8080, insidePort))
	l.must(l.network.UpdateServices([]nodenet.Service{service("api", backend(api, 1))}, nil))
	if !strings.Contains(list(), "service_api_tcp_80") {
		t.Fatal("there are no rules of ours")
	}
	l.stop()
	l.must(nodenet.Clear(l.opts))
	want := list()
	if strings.Contains(want, "cloudless") || !strings.Contains(want, "table inet fw") {
		t.Errorf("after clearing: %s", want)
	}
	nft(t, "delete table inet fw")
	nft(t, `table inet fw { set s { type ipv4_addr; elements = { 192.0.2.1, 192.0.2.2 } }
		chain forward { type filter hook forward priority 0; ip saddr @s drop; }; chain nat { type nat hook postrouting priority 100; }; }`)
	if got := list(); got != want {
		t.Errorf("rules that never saw us: %s\nafter us: %s", got, want)
	}
}
