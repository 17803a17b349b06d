package nodenet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet"
)

func udp(host, inside uint16) nodenet.Port {
	return nodenet.Port{Protocol: "udp", Host: host, Inside: inside}
}

// Replicas have addresses of both families, reach each other and the outside, and appear
// there under the machine's own address.
func TestAddressesAndUplink(t *testing.T) {
	l := newLab(t)
	a, b := l.attach("a", "web"), l.attach("b", "db")
	if got := fmt.Sprint(a.Addresses, b.Addresses); got != "[10.64.3.2 fd00:64:0:3::2] [10.64.3.3 fd00:64:0:3::3]" {
		t.Errorf("addresses %s", got)
	}
	l.serve(l.outside, "outside")
	for _, c := range []struct{ from, network, to, answers, seenAs string }{
		{a.Namespace, "tcp", "10.64.3.3:8000", "b", "10.64.3.2"},
		{a.Namespace, "tcp", "[fd00:64:0:3::3]:8000", "b", "fd00:64:0:3::2"},
		{"", "tcp", "10.64.3.2:8000", "a", "10.64.3.1"},
		{"", "tcp", "[fd00:64:0:3::2]:8000", "a", "fd00:64:0:3::1"},
		{a.Namespace, "tcp", there4 + ":8000", "outside", here4},
		{a.Namespace, "udp", there4 + ":8000", "outside", here4},
		{a.Namespace, "tcp", "[" + there6 + "]:8000", "outside", here6},
		{a.Namespace, "tcp", "127.0.0.1:8000", "a", "127.0.0.1"},
		{a.Namespace, "tcp", "[::1]:8000", "a", "::1"},
	} {
		answers, seenAs, err := ask(c.from, c.network, c.to)
		if err != nil || answers != c.answers || seenAs != c.seenAs {
			t.Errorf("%s to %s from %q: %s saw %s (%v), want %s to see %s", c.network, c.to, c.from, answers, seenAs, err, c.answers, c.seenAs)
		}
	}
}

// A published port is reachable from other machines, from this one by all its addresses,
// from another replica and from the replica itself.
func TestPublish(t *testing.T) {
	for _, setting := range []string{"0", "1"} { // whether rules see bridged packets
		t.Run("bridge-nf-call-iptables="+setting, func(t *testing.T) {
			for _, name := range []string{"iptables", "ip6tables"} {
				err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte(setting), 0)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
			}
			testPublish(t)
		})
	}
}

func testPublish(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web", tcp(8080, insidePort), udp(5353, insidePort))
	b := l.attach("b", "db")
	for _, network := range []string{"tcp", "udp"} {
		port := map[string]string{"tcp": "8080", "udp": "5353"}[network]
		for name, c := range map[string][2]string{
			"another machine":            {l.outside, here4},
			"another machine, IPv6":      {l.outside, "[" + here6 + "]"},
			"127.0.0.1":                  {"", "127.0.0.1"},
			"[::1]":                      {"", "[::1]"},
			"own address":                {"", here4},
			"own address, IPv6":          {"", "[" + here6 + "]"},
			"the bridge":                 {"", "10.64.3.1"},
			"another replica":            {b.Namespace, here4},
			"another replica, bridge":    {b.Namespace, "10.64.3.1"},
			"another replica, IPv6":      {b.Namespace, "[" + here6 + "]"},
			"the replica itself":         {a.Namespace, here4},
			"the replica itself, IPv6":   {a.Namespace, "[" + here6 + "]"},
			"the replica itself, bridge": {a.Namespace, "10.64.3.1"},
		} {
			uid, caller, err := ask(c[0], network, c[1]+":"+port)
			if err != nil || uid != "a" {
				t.Errorf("%s from %s: %q, %v", network, name, uid, err)
			}
			if strings.HasPrefix(name, "another machine") && caller != there4 && caller != there6 {
				t.Errorf("%s from %s: the replica sees %s, not who calls", network, name, caller)
			}
		}
	}
	// Unpublished ports are not reachable, and other addresses are not ours.
	if _, _, err := ask(l.outside, "tcp", here4+":8000"); err == nil {
		t.Error("a port that is not published can be reached")
	}
}

// A replica cannot reach programs that listen only on the machine's loopback.
func TestLoopbackStaysPrivate(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web")
	listener, err := net.Listen("tcp", "127.0.0.1:9000")
	l.must(err)
	defer listener.Close()
	l.must(inside(a.Namespace, func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0); err != nil {
			return err
		}
		// The replica does what it can to send 127.0.0.1 out through its link.
		if err := netlink.AddrDel(lo, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}}); err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{
			LinkIndex: link.Attrs().Index, Gw: net.IPv4(10, 64, 3, 1),
			Dst: &net.IPNet{IP: net.IPv4(127, 0, 0, 0), Mask: net.CIDRMask(8, 32)},
		})
	}))
	l.closed(a.Namespace, "tcp", "127.0.0.1:9000", "web", "host")
}

// Replicas of one group share a port at random; other groups cannot have it.
func TestSharedPort(t *testing.T) {
	l := newLab(t)
	for _, uid := range []string{"a", "b", "c"} {
		l.attach(uid, "web", tcp(8080, insidePort))
	}
	_, err := l.network.Attach(context.Background(), nodenet.Endpoint{UID: "d", Group: "db", Owner: "db", Ports: []nodenet.Port{udp(5300, 53), tcp(8080, 80)}})
	taken, ok := errors.AsType[*nodenet.PortError](err)
	if !ok || taken.User != "web" || taken.Port != "8080" {
		t.Errorf("another group: %v", err)
	}
	if packets, err := net.ListenPacket("udp", ":5300"); err != nil {
		t.Errorf("a port of the refused endpoint is still held: %v", err)
	} else {
		packets.Close()
	}
	l.awaitAnswers("127.0.0.1:8080", "a", "b", "c")
	l.awaitAnswers("[::1]:8080", "a", "b", "c")
	l.must(l.network.Withdraw("b"))
	l.awaitAnswers("127.0.0.1:8080", "a", "c")
	l.must(l.network.Detach(t.Context(), "a"))
	l.must(l.network.Detach(t.Context(), "b"))
	l.awaitAnswers("127.0.0.1:8080", "c")
	l.must(l.network.Withdraw("c"))
	for _, addr := range []string{"127.0.0.1:8080", "[::1]:8080"} {
		if uid, _, err := ask("", "tcp", addr); err == nil {
			t.Errorf("%s answers at %s and no replica serves", uid, addr)
		}
	}
}

// awaitAnswers asks until each of want has answered, and no other does.
func (l *lab) awaitAnswers(addr string, want ...string) {
	l.t.Helper()
	seen := map[string]bool{}
	for range 1000 {
		uid, _, err := ask("", "tcp", addr)
		l.must(err)
		if !slices.Contains(want, uid) {
			l.t.Fatalf("%s answers at %s, want one of %v", uid, addr, want)
		}
		if seen[uid] = true; len(seen) == len(want) {
			return
		}
	}
	l.t.Errorf("only %v ever answered at %s", seen, addr)
}

// A port in use is not taken from its program, the program is named, and the port is taken
// once it is free. Later programs get "address in use".
func TestPortInUse(t *testing.T) {
	l := newLab(t)
	for _, c := range []struct {
		port nodenet.Port
		open func() (io.Closer, error)
	}{
		{tcp(8081, insidePort), func() (io.Closer, error) { return net.Listen("tcp", "127.0.0.1:8081") }},
		{tcp(8081, insidePort), func() (io.Closer, error) { return net.Listen("tcp", ":8081") }},
		{tcp(8081, insidePort), func() (io.Closer, error) { return net.Listen("tcp6", "[::1]:8081") }},
		{udp(8081, insidePort), func() (io.Closer, error) { return net.ListenPacket("udp", "127.0.0.1:8081") }},
	} {
		stranger, err := c.open()
		l.must(err)
		e := nodenet.Endpoint{UID: "a", Hostname: "a", Group: "web", Owner: "web", Ports: []nodenet.Port{c.port}}
		_, err = l.network.Attach(t.Context(), e)
		want := fmt.Sprintf("(process %d)", os.Getpid())
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "port 8081") {
			t.Errorf("got %v, want one that names %s", err, want)
		}
		l.must(stranger.Close())
		_, err = l.network.Attach(t.Context(), e)
		l.must(err)
		if late, err := c.open(); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("a stranger that comes late: %v", err)
			late.Close()
		}
		l.must(l.network.Detach(t.Context(), "a"))
		free, err := c.open()
		l.must(err)
		l.must(free.Close())
	}
}

// Addresses survive restarts of the process and of the machine, are never given twice, and
// are reused late.
func TestAddressesSurviveRestarts(t *testing.T) {
	l := newLab(t)
	before := l.attach("a", "web", tcp(8080, insidePort))
	l.attach("b", "web")
	conn, err := net.Dial("tcp", "127.0.0.1:8080")
	l.must(err)
	defer conn.Close()
	l.restart()
	if _, _, err := speak(conn); err != nil {
		t.Errorf("a connection did not survive: %v", err)
	}
	again, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "a", Hostname: "a", Group: "web", Ports: []nodenet.Port{tcp(8080, insidePort)}})
	l.must(err)
	if !slices.Equal(before.Addresses, again.Addresses) || before.Namespace != again.Namespace {
		t.Errorf("after a restart: %v, before: %v", again, before)
	}
	eventually(t, func() error { _, _, err := ask("", "tcp", "[::1]:8080"); return err })
	if uid, _, err := ask(l.outside, "tcp", here4+":8080"); err != nil || uid != "a" {
		t.Errorf("after a restart the port leads to %q, %v", uid, err)
	}
	// A reboot removes everything that is not on disk.
	l.stop()
	l.must(nodenet.Clear(l.opts))
	l.start()
	after, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "b"})
	l.must(err)
	if after.Addresses[0].String() != "10.64.3.3" {
		t.Errorf("after a reboot: %v", after.Addresses)
	}
	l.must(l.network.Detach(t.Context(), "b"))
	l.must(l.network.Retain(t.Context(), func(string) bool { return false }))
	next, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "c"})
	l.must(err)
	if next.Addresses[0].String() != "10.64.3.4" {
		t.Errorf("the next one got %v, although others were used longer ago", next.Addresses)
	}
}

func TestSubnetIsFull(t *testing.T) {
	l := newLab(t)
	l.must(l.network.Configure(nodenet.Subnets{V4: netip.MustParsePrefix("10.64.9.0/29")}))
	for i := range 5 {
		_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: fmt.Sprint("r", i)})
		l.must(err)
	}
	_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "r5"})
	if err == nil || !strings.Contains(err.Error(), "all 5 addresses of subnet 10.64.9.0/29 are in use") {
		t.Errorf("got %v", err)
	}
	l.must(l.network.Detach(t.Context(), "r3"))
	last, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "r5"})
	l.must(err)
	if got := last.Addresses[0].String(); got != "10.64.9.5" {
		t.Errorf("got %s", got)
	}
}

// Whatever another program removes is restored at once.
func TestRestoresWhatOthersRemove(t *testing.T) {
	l := newLab(t)
	l.attach("a", "web", tcp(8080, insidePort))
	table := "cloudless_testtest"
	reached := func() error {
		// By the rules, that is: a proxied connection would show the machine as the caller.
		uid, caller, err := ask(l.outside, "tcp", here4+":8080")
		if err == nil && (uid != "a" || caller != there4) {
			err = fmt.Errorf("from outside: %s sees %s", uid, caller)
		}
		return err
	}
	eventually(t, reached)
	for name, harm := range map[string][]string{
		"flush":          {"nft", "flush", "ruleset"},
		"delete a chain": {"nft", "flush", "chain", "inet", table, "prerouting"},
		"drop in ours":   {"nft", "insert", "rule", "inet", table, "guard", "drop"},
		"take a port":    {"nft", "delete", "element", "inet", table, "published", "{ tcp . 8080 }"},
		"turn a port": {"nft", "delete element inet " + table + " published { tcp . 8080 }; " +
			"add element inet " + table + " published { tcp . 8080 : drop }"},
		"put to sleep": {"nft", "add", "table", "inet", table, "{ flags dormant; }"},
		"bridge":       {"ip", "link", "del", "cl-testtest"},
		"address":      {"ip", "addr", "flush", "dev", "cl-testtest"},
		"link":         {"ip", "link", "del", "cvtesttest-2"},
		"link down":    {"ip", "link", "set", "cvtesttest-2", "down"},
		"forwarding":   {"sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command(harm[0], harm[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			eventually(t, reached)
		})
	}
	l.events.await(t, "RulesRestored")
	if told := l.events.await(t, "LinkRestored"); told.UID != "a" {
		t.Errorf("the event is about %q", told.UID)
	}
}

// A foreign rule that drops the traffic is named, with the command that fixes it.
func TestObstacles(t *testing.T) {
	l := newLab(t)
	l.attach("a", "web", tcp(8080, insidePort))
	eventually(t, func() error { _, _, err := ask(l.outside, "tcp", here4+":8080"); return err })
	if found, err := nodenet.Obstacles(t.Context()); err != nil || len(found) > 0 {
		t.Fatalf("without a firewall: %v, %v", found, err)
	}
	for name, c := range map[string]struct{ rules, want string }{
		"policy":      {"table inet fw { chain forward { type filter hook forward priority 0; policy drop; ct state established accept; }; }", "chain forward of table inet fw has policy drop"},
		"drop":        {"table ip fw { chain f { type filter hook forward priority 0; iifname \"cl-testtest\" drop; }; }", "in chain f of table ip fw drops what replicas send to other machines"},
		"reject in":   {"table ip fw { chain f { type filter hook forward priority 0; iifname != \"cl-testtest\" ct state new reject; }; }", "drops what other machines send to replicas"},
		"behind jump": {"table ip fw { chain inner { ip saddr 10.64.0.0/16 counter drop; }; chain f { type filter hook forward priority 0; jump inner; }; }", "in chain inner of table ip fw drops"},
		"docker": {
			"table ip filter { chain DOCKER-USER { return; }; chain FORWARD { type filter hook forward priority 0; policy drop; jump DOCKER-USER; oifname \"docker0\" accept; }; }",
			"chain FORWARD of table ip filter has policy drop",
		},
		"port": {
			fmt.Sprintf("table inet fw { chain f { type filter hook forward priority 0; tcp dport %d drop; }; }", insidePort),
			"in chain f of table inet fw drops what comes in by published port 8080",
		},
		"ports": {
			fmt.Sprintf("table ip fw { chain f { type filter hook forward priority 0; ip protocol tcp tcp dport { 1-1023, %d } drop; }; }", insidePort),
			"drops what comes in by published port 8080",
		},
		"set of names": {
			"table inet fw { chain f { type filter hook forward priority 0; oifname { \"eth7\", \"cl-testtest\" } drop; }; }",
			"drops what other machines send to replicas",
		},
		"index": {"table inet fw { chain f { type filter hook forward priority 0; oif cl-testtest drop; }; }", "drops what other machines send to replicas"},
		"map": {
			"table inet fw { chain f { type filter hook forward priority 0; iifname vmap { \"cl-testtest\" : drop, \"eth7\" : accept }; }; }",
			"drops what replicas send to other machines",
		},
		"not ours either": {
			"table inet fw { chain f { type filter hook forward priority 0; tcp dport { 1-1023, 5432 } drop; oifname { \"eth7\" } drop; oif lo drop; udp dport 53 drop; meta l4proto gre drop; }; }",
			"",
		},
		"set lets pass": {
			"table ip fw { chain f { type filter hook forward priority 0; policy drop; iifname { \"eth7\", \"cl-testtest\" } accept; oifname { \"cl-testtest\" } accept; }; }",
			"",
		},
		"not ours": {"table ip fw { chain f { type filter hook forward priority 0; iifname \"eth7\" drop; ip saddr 192.0.2.0/24 drop; tcp dport 25 drop; }; }", ""},
		"let pass": {"table ip fw { chain f { type filter hook forward priority 0; policy drop; iifname \"cl-testtest\" accept; oifname \"cl-testtest\" accept; }; }", ""},
	} {
		t.Run(name, func(t *testing.T) {
			nft(t, c.rules)
			defer func() {
				for _, table := range []string{"ip fw", "inet fw", "ip filter"} {
					_ = exec.Command("nft", append([]string{"delete", "table"}, strings.Fields(table)...)...).Run()
				}
			}()
			found, err := nodenet.Obstacles(t.Context())
			if err != nil || len(found) > 0 != (c.want != "") {
				t.Fatalf("found %v, %v", found, err)
			}
			if c.want == "" {
				return
			}
			if !strings.Contains(found[0].Sentence, c.want) {
				t.Errorf("%q does not say %q", found[0].Sentence, c.want)
			}
			eventually(t, func() error {
				if ok, reason := l.network.Condition(); ok || !strings.Contains(reason, c.want) {
					return fmt.Errorf("condition %v, %q", ok, reason)
				}
				return nil
			})
			if strings.HasPrefix(found[0].Mend, "nft") {
				for _, command := range strings.Split(found[0].Mend, " && ") {
					nft(t, strings.TrimPrefix(command, "nft "))
				}
				if _, _, err := ask(l.outside, "tcp", here4+":8080"); err != nil {
					t.Errorf("after %s: %v", found[0].Mend, err)
				}
			} else if !strings.Contains(found[0].Mend, "DOCKER-USER") {
				t.Errorf("mend by %q", found[0].Mend)
			}
			eventually(t, func() error {
				if _, reason := l.network.Condition(); strings.HasPrefix(found[0].Mend, "nft") && reason != "" {
					return errors.New(reason)
				}
				return nil
			})
		})
	}
	if told := l.events.await(t, "Obstructed"); !told.Warning {
		t.Error("an obstacle is no warning")
	}
}

func nft(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// Another interface with the node's addresses is reported in a sentence.
func TestCollision(t *testing.T) {
	l := newLab(t)
	eventually(t, func() error {
		got, err := nodenet.Used()
		if err == nil && (!slices.Contains(got, subnets.V4) || !slices.Contains(got, netip.MustParsePrefix("198.51.100.0/24"))) {
			err = fmt.Errorf("in use: %v", got)
		}
		return err
	})
	address(l, &netlink.Handle{}, "wire", "10.64.3.77/25")
	if told := l.events.await(t, "SubnetCollision"); !strings.Contains(told.Message, "10.64.3.0/24 overlaps 10.64.3.0/25 on interface wire") {
		t.Errorf("the event is %q", told.Message)
	}
	if ok, _ := l.network.Condition(); ok {
		t.Error("the condition says that all is well")
	}
}

// A network of the machine that overlaps the range of services keeps its route, and is reported.
func TestRangeOfServicesLosesAgainstNetworksOfTheMachine(t *testing.T) {
	l := newLab(t)
	address(l, &netlink.Handle{}, "wire", "10.96.0.7/16")
	l.must(l.network.SetRanges(serviceRanges))
	told := l.events.await(t, "SubnetCollision")
	if !strings.Contains(told.Message, "10.96.0.0/16 overlaps 10.96.0.0/16 on interface wire") || !strings.Contains(told.Message, "config set serviceRangeV4=RANGE") {
		t.Errorf("the event is %q", told.Message)
	}
	out, err := exec.Command("ip", "route", "get", "10.96.0.9").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "dev wire") {
		t.Errorf("the machine's own network is reached by %s, %v", out, err)
	}
	// Nobody has that address, so the neighbour is looked for in vain: the rules do not refuse it.
	conn, err := net.Dial("udp", "10.96.0.9:9")
	l.must(err)
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Errorf("packets to the machine's own network are refused: %v", err)
	}
}

// Files inside contain what the machine's contain, without servers on its loopback.
func TestFiles(t *testing.T) {
	l := newLab(t)
	a := l.attach("web-1", "web")
	hosts, err := os.ReadFile(a.Files["/etc/hosts"])
	if err != nil || !strings.Contains(string(hosts), "10.64.3.2\tweb-1\n") || !strings.Contains(string(hosts), "fd00:64:0:3::2\tweb-1\n") {
		t.Errorf("hosts: %q, %v", hosts, err)
	}
	name, err := os.ReadFile(a.Files["/etc/hostname"])
	if err != nil || string(name) != "web-1\n" {
		t.Errorf("hostname: %q, %v", name, err)
	}
	if _, err := os.Stat(a.Files["/etc/resolv.conf"]); err != nil {
		t.Error(err)
	}
}

// Name servers inside follow those of the machine, in the same file.
func TestNameServersFollowTheMachine(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := unix.Mount("none", "/etc", "tmpfs", 0, ""); err != nil { // of these tests' own mount namespace
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/etc", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	say := func(text string) {
		if err := errors.Join(os.WriteFile("/etc/new", []byte(text), 0o644), os.Rename("/etc/new", "/etc/resolv.conf")); err != nil {
			t.Fatal(err)
		}
	}
	say("nameserver 192.0.2.1\n")
	l := newLab(t)
	path := l.attach("a", "web").Files["/etc/resolv.conf"]
	mounted, err := os.Open(path) // as a container has it
	l.must(err)
	defer mounted.Close()
	for _, want := range []string{"nameserver 192.0.2.1\n", "search example.com\nnameserver 192.0.2.2\n", "nameserver 192.0.2.3\n"} {
		say(want)
		eventually(t, func() error {
			got := make([]byte, 100)
			size, _ := mounted.ReadAt(got, 0)
			if string(got[:size]) != want {
				return fmt.Errorf("inside it says %q, want %q", got[:size], want)
			}
			return nil
		})
	}
	say("nameserver 127.0.0.53\n")
	if told := l.events.await(t, "NoNameServer"); !strings.Contains(told.Message, "Names cannot be resolved") {
		t.Errorf("the event is %q", told.Message)
	}
}

func TestCounters(t *testing.T) {
	l := newLab(t)
	a := l.attach("a", "web")
	before, err := l.network.Counters("a")
	l.must(err)
	// No listener is needed: the link counts what passes.
	conn, err := net.ListenPacket("udp", ":0")
	l.must(err)
	defer conn.Close()
	to := &net.UDPAddr{IP: a.Addresses[0].AsSlice(), Port: 9}
	eventually(t, func() error {
		for range 100 { // repeatedly, because the kernel drops some until it knows the neighbour
			if _, err := conn.WriteTo(make([]byte, 1000), to); err != nil {
				return err
			}
		}
		after, err := l.network.Counters("a")
		if err == nil && after.Received < before.Received+100_000 {
			err = fmt.Errorf("received %d, before %d", after.Received, before.Received)
		}
		return err
	})
	if _, err := l.network.Counters("nobody"); err == nil {
		t.Error("an unknown replica has counters")
	}
}

// Clearing leaves nothing on the machine, and a second time does no harm.
func TestClearLeavesNothing(t *testing.T) {
	l := newLab(t)
	setting := func(name string) string {
		data, _ := os.ReadFile("/proc/sys/net/ipv4/" + name)
		return strings.TrimSpace(string(data))
	}
	l.must(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0))
	l.attach("a", "web", tcp(8080, insidePort))
	eventually(t, func() error {
		if setting("conf/wire/forwarding") != "1" {
			return errors.New("packets are not forwarded")
		}
		return nil
	})
	if setting("ip_forward") != "0" || setting("conf/lo/forwarding") != "0" {
		t.Error("all interfaces forward packets")
	}
	l.stop()
	for range 2 {
		l.must(nodenet.Clear(l.opts))
	}
	links, err := netlink.LinkList()
	l.must(err)
	for _, link := range links {
		if strings.Contains(link.Attrs().Name, "testtest") {
			t.Errorf("link %s is left", link.Attrs().Name)
		}
	}
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil || strings.Contains(string(out), "testtest") {
		t.Errorf("tables: %s, %v", out, err)
	}
	left, _ := filepath.Glob(filepath.Dir(l.opts.RunDir) + "/settings*")
	below, _ := filepath.Glob(l.opts.RunDir + "/*")
	left = append(left, below...)
	if len(left) > 0 || setting("conf/wire/forwarding") != "0" {
		t.Errorf("left %v, forwarding %q", left, setting("conf/wire/forwarding"))
	}
}
