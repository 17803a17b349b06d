package mesh

import (
	"strings"
	"testing"
	"time"
)

func direct(p PeerStatus) bool  { return p.State == StateDirect }
func relayed(p PeerStatus) bool { return p.State == StateRelayed }

// onLAN is a node with an address of its own on the internet.
func (l *lab) onLAN(name string, addresses ...string) *node {
	l.t.Helper()
	l.addNamespace(name)
	l.attach(name, "net", "lan", addresses...)
	return l.addNode(name, 1420)
}

func TestNodesOnOneLANReachEachOtherDirectly(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	a.reach(b)
	if p := a.until(b, direct); p.Address.String() != "198.51.100.12:7000" {
		t.Errorf("the path leads to %v", p.Address)
	}
	b.until(a, direct)
}

func TestNodesWithoutUDPUseTheRelay(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	b.blockUDP()
	a.reach(b)
	// The node may relay packets before it has learnt the address of its peer.
	a.until(b, func(p PeerStatus) bool { return relayed(p) && p.WhyNot == "198.51.100.12:7000 does not answer" })
	b.unblockUDP()
	a.until(b, direct)
}

// blockUDP drops all of the mesh's own datagrams, as some firewalls do.
func (n *node) blockUDP() {
	n.lab.in(n.namespace, "nft", "add table inet block; add chain inet block in { type filter hook input priority 0; }; add rule inet block in udp dport 7000 drop; "+
		"add chain inet block out { type filter hook output priority 0; }; add rule inet block out udp sport 7000 drop")
}

func (n *node) unblockUDP() { n.lab.in(n.namespace, "nft", "delete table inet block") }

// A direct path that fails is replaced by the relay, and traffic goes on.
func TestTrafficMovesToTheRelayWhenThePathFails(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	a.until(b, direct)
	b.blockUDP()
	a.until(b, relayed)
	a.reach(b)
}

func TestNodesWithOnlyIPv6(t *testing.T) {
	l := newLab(t)
	l.relay.Address = "[fd99::1]:7443"
	a := l.onLAN("a", "fd99::11/64")
	b := l.onLAN("b", "fd99::12/64")
	a.reach(b)
	if p := a.until(b, direct); p.Address.String() != "[fd99::12]:7000" {
		t.Errorf("the path leads to %v", p.Address)
	}
}

// behindNAT is a node in a private network, behind a router that masquerades. A symmetric one uses another port for
// every destination.
func (l *lab) behindNAT(name, public string, symmetric bool) *node {
	l.t.Helper()
	router := name + "r"
	l.addNamespace(name)
	l.addNamespace(router)
	l.attach(router, "net", "lan", public+"/24")
	l.ip("-n", l.ns(router), "link", "add", "home", "type", "bridge")
	l.ip("-n", l.ns(router), "link", "set", "home", "up")
	l.ip("-n", l.ns(router), "address", "add", "192.168.7.1/24", "dev", "home")
	l.attach(name, router, "home", "192.168.7.2/24")
	l.ip("-n", l.ns(name), "route", "add", "default", "via", "192.168.7.1")
	l.in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	how := "masquerade"
	if symmetric {
		how = "masquerade random,fully-random"
	}
	l.in(router, "nft", "add table inet nat; add chain inet nat post { type nat hook postrouting priority 100; }; "+
		"add rule inet nat post oifname eth0 "+how+"; "+
		"add chain inet nat in { type filter hook input priority 0; }; add rule inet nat in iifname eth0 udp dport != 53 ct state new drop")
	return l.addNode(name, 1420)
}

func TestNodesBehindTwoNATsPunchHoles(t *testing.T) {
	l := newLab(t)
	a := l.behindNAT("a", "198.51.100.31", false)
	b := l.behindNAT("b", "198.51.100.32", false)
	a.reach(b)
	if p := a.until(b, direct); p.Address.Addr().String() != "198.51.100.32" {
		t.Errorf("the path leads to %v", p.Address)
	}
	b.until(a, direct)
}

func TestNodeBehindASymmetricNATIsReached(t *testing.T) {
	l := newLab(t)
	a := l.behindNAT("a", "198.51.100.31", true)
	b := l.behindNAT("b", "198.51.100.32", true)
	c := l.onLAN("c", "198.51.100.13/24")
	a.reach(b)
	a.until(b, relayed)
	a.reach(c)
	a.until(c, direct) // one side with a public address is enough
	c.until(a, direct)
}

// A laptop that moves to another network keeps its sessions.
func TestNodeWithAnotherAddressIsFoundAgain(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	a.reach(b)
	a.until(b, func(p PeerStatus) bool { return direct(p) && !p.Handshake.IsZero() })
	moved := time.Now()
	l.ip("-n", l.ns("b"), "address", "del", "198.51.100.12/24", "dev", "eth0")
	l.ip("-n", l.ns("b"), "address", "add", "198.51.100.99/24", "dev", "eth0")
	p := a.until(b, func(p PeerStatus) bool { return direct(p) && p.Address.Addr().String() == "198.51.100.99" })
	if p.Handshake.After(moved) {
		t.Errorf("a new session was made at %v, after the move at %v", p.Handshake, moved)
	}
	a.reach(b)
}

func TestKilledNodeIsBackAfterItsRestart(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	a.until(b, direct)
	b.kill()
	if a.ping(b) {
		t.Error("a killed node answers")
	}
	b.start()
	a.reach(b)
	a.until(b, direct)
}

func TestRemovedPeerIsCutOff(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	a.until(b, direct)
	l.mu.Lock()
	l.nodes = l.nodes[:0] // no test shares it any more
	l.mu.Unlock()
	a.tell(order{Peers: []Peer{}})
	a.status() // it was done
	if b.ping(a) || a.ping(b) {
		t.Error("a removed peer is answered")
	}
}

func TestPeerWithAnOldKeyIsRefused(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	b := l.onLAN("b", "198.51.100.12/24")
	a.until(b, direct)
	l.mu.Lock()
	l.nodes = l.nodes[:0]
	l.mu.Unlock()
	other := b.peer()
	other.Key = newKey(t).Public()
	a.tell(order{Peers: []Peer{other}})
	a.status()
	if b.ping(a) {
		t.Error("a peer with another key is answered")
	}
	a.tell(order{Peers: []Peer{b.peer()}})
	b.reach(a)
}

// A network with a smaller MTU in the middle is found, and packets are made to fit.
func TestMTUOfThePathIsFound(t *testing.T) {
	l := newLab(t)
	a := l.onLAN("a", "198.51.100.11/24")
	l.addNamespace("b")
	l.addNamespace("r")
	l.attach("r", "net", "lan", "198.51.100.2/24")
	l.ip("-n", l.ns("r"), "link", "add", "narrow", "type", "bridge")
	l.ip("-n", l.ns("r"), "link", "set", "narrow", "up", "mtu", "1280")
	l.ip("-n", l.ns("r"), "address", "add", "203.0.113.1/24", "dev", "narrow")
	l.in("r", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	l.attach("b", "r", "narrow", "203.0.113.2/24")
	l.ip("-n", l.ns("r"), "link", "set", "narrow", "mtu", "1280")
	l.ip("-n", l.ns("b"), "route", "add", "default", "via", "203.0.113.1")
	l.ip("-n", l.ns("a"), "route", "add", "203.0.113.0/24", "via", "198.51.100.2")
	l.ip("-n", l.ns("net"), "route", "add", "203.0.113.0/24", "via", "198.51.100.2")
	b := l.addNode("b", 1420)
	a.reach(b)
	a.until(b, func(p PeerStatus) bool { return direct(p) && p.MTU == smallestMTU })
	for i, want := range []string{"mtu 1200", "mtu 1280"} { // that of IPv6 cannot be smaller
		if route := l.in("a", "ip", "route", "get", b.config.Addresses[i].Addr().String()); !strings.Contains(route, want) {
			t.Errorf("the route is %q, want %s", route, want)
		}
	}
}
