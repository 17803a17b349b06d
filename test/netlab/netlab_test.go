package netlab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/test/sandbox"
)

func TestMain(m *testing.M) { os.Exit(sandbox.Main(m, "./replica")) }

// TestNetwork tells one story on one cluster.
func TestNetwork(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root and containers; make test runs it")
	}
	l := newLab(t)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"every replica reaches every other one", l.everyPair},
		{"every replica finds every other one by name", l.names},
		{"packets take the direct path wherever there is one", l.directPaths},
		{"packets take the relay where there is no direct path", l.relayedPaths},
		{"network status tells the way", l.status},
		{"bulk transfers get through MTU 1280", l.narrowPath},
		{"a router maps a port for a machine behind it", l.mappedPort},
		{"connections survive when a machine moves", l.movingMachine},
		{"a removed node is cut off", l.removedNode},
		{"nothing crossed a wire in the clear", l.nothingInTheClear},
		{"nothing is left after a purge", l.purge},
	} {
		if !t.Run(step.name, func(t *testing.T) { l.t = t; step.do() }) {
			break
		}
	}
	l.t = t
}

// everyPair asks every replica from every other one, by both families.
func (l *lab) everyPair() {
	l.must(l.each(l.machines, func(from *machine) error {
		for _, to := range l.machines {
			for _, v6 := range []bool{false, true} {
				if from == to {
					continue
				}
				if err := l.wait(func() error { return from.get(to, v6) }); err != nil {
					return err
				}
			}
		}
		return nil
	}))
}

// names looks up every replica from every other one, and the service that they all are.
func (l *lab) names() {
	out, err := l.server.cloudless("service", "get", workload, "-o", "json")
	l.must(err)
	var service struct{ Status struct{ AddressV4 string } }
	l.must(json.Unmarshal([]byte(out), &service))
	l.must(l.each(l.machines, func(m *machine) error {
		return errors.Join(
			l.wait(func() error { return m.finds(l.machines) }),
			l.wait(func() error { return m.findsService(service.Status.AddressV4) }),
		)
	}))
}

// directPaths moves packets off the relay: on one LAN, through two NATs, to a public address from behind a symmetric
// NAT, and by IPv6.
func (l *lab) directPaths() {
	l.direct(l.homeA, "lan-a", "lan-b")
	l.direct(l.internet, "lan-a", "nat")
	l.direct(l.internet, "nat", "lan-b")
	l.direct(l.internet, "sym", "server")
	l.direct(l.internet, "six", "server")
	l.direct(l.internet, "laptop", "nat")
}

func (l *lab) direct(wire *capture, from, to string) {
	l.t.Helper()
	l.until(fmt.Sprintf("packets from %s to %s take a direct path", from, to), func() error {
		w, err := l.wayOf(wire, l.machine(from), l.machine(to), small)
		if err == nil && w.direct < w.received {
			err = errors.New(w.String())
		}
		return err
	})
}

// relayedPaths transfers much through the relay: where UDP is blocked, and where the machines have no family in common.
func (l *lab) relayedPaths() {
	for _, pair := range [][2]string{{"noudp", "lan-a"}, {"nat", "noudp"}, {"noudp", "server"}, {"six", "nat"}, {"laptop", "six"}} {
		w, err := l.wayOf(l.internet, l.machine(pair[0]), l.machine(pair[1]), bulk)
		l.must(err)
		if w.relayed < w.received || w.direct >= small {
			l.t.Errorf("from %s to %s, %v", pair[0], pair[1], w)
		}
	}
	// Two NATs of which one is symmetric may let packets through or not: either way, they arrive.
	_, err := l.transfer(l.machine("sym"), l.machine("nat"), bulk, false)
	l.must(err)
}

// status compares what users are told with what the wires have shown.
func (l *lab) status() {
	for _, c := range [][3]string{
		{"lan-a", "lan-b", "direct"},
		{"lan-a", "nat", "direct"},
		{"six", "server", "direct"},
		{"noudp", "lan-a", "relayed"},
		{"six", "nat", "relayed"},
	} {
		from, to, want := l.machine(c[0]), l.machine(c[1]), c[2]
		l.until("network status tells the way", func() error {
			if err := from.get(to, false); err != nil { // a peer without traffic is idle
				return err
			}
			got, err := l.stateOf(from, to)
			if err == nil && got != want {
				err = fmt.Errorf("from %s to %s, the state is %q, want %q", from.name, to.name, got, want)
			}
			return err
		})
	}
}

// stateOf is how one machine reaches another, as network status says.
func (l *lab) stateOf(from, to *machine) (string, error) {
	out, err := l.server.cloudless("network", "status", "--node", from.name, "-o", "json")
	if err != nil {
		return "", err
	}
	var answer struct {
		Nodes []struct {
			Peers []struct{ Peer, State string }
		}
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		return "", err
	}
	for _, node := range answer.Nodes {
		for _, peer := range node.Peers {
			if peer.Peer == to.name {
				return peer.State, nil
			}
		}
	}
	return "", fmt.Errorf("%s is not among the peers of %s: %s", to.name, from.name, out)
}

// narrowPath transfers much in both directions, directly, and by both families inside the mesh.
func (l *lab) narrowPath() {
	l.direct(l.internet, "narrow", "nat")
	l.direct(l.internet, "server", "narrow")
	for _, v6 := range []bool{false, true} {
		_, there := l.transfer(l.machine("narrow"), l.machine("nat"), bulk, v6)
		_, back := l.transfer(l.machine("server"), l.machine("narrow"), bulk, v6)
		l.must(errors.Join(there, back))
	}
}

// movingMachine takes the laptop from the internet to home B, where it has another interface and another address.
// Connections stay, those through direct paths and those through the relay.
func (l *lab) movingMachine() {
	laptop := l.machine("laptop")
	var all []*conversation
	for _, pair := range [][2]*machine{{laptop, l.machine("nat")}, {l.machine("lan-a"), laptop}, {l.machine("noudp"), laptop}, {laptop, l.machine("six")}} {
		c := l.converse(pair[0], pair[1])
		c.say("before the move")
		all = append(all, c)
	}
	w := &wires{t: l.t}
	w.ip("laptop", "link set eth0 down")
	w.address("laptop", "wlan0", "192.168.7.12/24")
	w.ip("laptop", "route add default via "+homeGateway)
	laptop.public, laptop.private = netip.MustParseAddr(homeB), netip.MustParseAddr("192.168.7.12")
	for _, c := range all {
		c.say("after the move")
	}
	l.direct(l.homeB, "laptop", "nat")
	l.direct(l.internet, "lan-a", "laptop")
	l.readdressed(laptop)
	l.neverOffline(laptop)
}

// readdressed gives the laptop other addresses on the same wire, as DHCP does, several times.
func (l *lab) readdressed(laptop *machine) {
	w := &wires{t: l.t}
	keepSecond := func(value string) { // or else the kernel removes the new address together with the old one
		w.run("nsenter", "--net="+path("laptop"), "sysctl", "-qw", "net.ipv4.conf.wlan0.promote_secondaries="+value)
	}
	keepSecond("1")
	defer keepSecond("0")
	c := l.converse(laptop, l.machine("noudp"))
	c.say("before the first change")
	now := "192.168.7.12/24"
	for _, next := range []string{"192.168.7.13/24", "192.168.7.14/24", "192.168.7.12/24"} {
		w.address("laptop", "wlan0", next)
		w.ip("laptop", "address del "+now+" dev wlan0")
		now = next
		c.say("with the address " + next)
	}
}

// neverOffline checks that the servers always knew of a machine.
func (l *lab) neverOffline(m *machine) {
	out, err := l.server.cloudless("events", "--for", "node/"+m.name, "--limit", "0", "-o", "json")
	l.must(err)
	if strings.Contains(out, `"Offline"`) || !strings.Contains(out, `"Ready"`) {
		l.t.Errorf("%s was offline: %s", m.name, out)
	}
}

// removedNode removes a node whose agent is dead. It does not know that it was removed, and still the others refuse it,
// directly and through the relay.
func (l *lab) removedNode() {
	gone := l.machine("lan-b")
	l.must(gone.killAgent())
	others := []*machine{l.machine("lan-a"), l.machine("server"), l.machine("noudp")}
	l.must(l.each(others, func(other *machine) error {
		return l.wait(func() error { return errors.Join(gone.get(other, false), other.get(gone, false)) })
	}))
	_, err := l.server.cloudless("node", "rm", gone.name, "--force")
	l.must(err)
	l.must(l.each(others, func(other *machine) error {
		return l.wait(func() error {
			if gone.get(other, false) == nil || other.get(gone, false) == nil {
				return fmt.Errorf("%s and %s still reach each other", other.name, gone.name)
			}
			return nil
		})
	}))
}

func (l *lab) nothingInTheClear() {
	for _, c := range l.captures() {
		c.clean(l)
	}
}

// purge removes Cloudless from all machines. Nothing of it stays, and what was there before is as it was.
func (l *lab) purge() {
	down := func(m *machine) error {
		_, err := m.cloudless("down", "--purge")
		return err
	}
	l.must(l.each(slices.DeleteFunc(slices.Clone(l.machines), func(m *machine) bool { return m == l.server }), down))
	l.must(down(l.server))
	l.unmapped()
	w := &wires{t: l.t} // the laptop is brought back
	w.ip("laptop", "address del 192.168.7.12/24 dev wlan0")
	w.ip("laptop", "link set eth0 up")
	w.ip("laptop", "route add default via "+gateway)
	for _, m := range l.machines {
		for _, one := range differences(m.before, m.inventory()) {
			l.t.Errorf("on %s, %s", m.name, one)
		}
	}
	for _, one := range differences(l.before, l.inventory()) {
		l.t.Error(one)
	}
}
