package netd

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/resolver"
)

func service(namespace, name, address string) resolver.Service {
	return resolver.Service{Name: resolver.Name{Namespace: namespace, Name: name}, V4: netip.MustParseAddr(address)}
}

// dig looks up a name, from the machine or from one of its addresses.
func (m *machine) dig(name, from string) string {
	m.t.Helper()
	out, _ := exec.Command("ip", "netns", "exec", m.namespace, "dig", "+short", "+time=5", "+tries=1", "-b", from, "@"+m.server().Addr().String(), name+".cloudless.internal").CombinedOutput()
	return strings.TrimSpace(string(out))
}

func (m *machine) server() netip.AddrPort { return netip.AddrPortFrom(m.setup.Addresses[0].Addr(), 53) }

// withNames is a machine whose replica 10.64.1.7 is in namespace shop.
func withNames(t *testing.T) (m *machine, c *Client, stop func()) {
	t.Helper()
	m, _ = twoMachines(t)
	run(t, "ip", "-n", m.namespace, "address", "add", "10.64.1.7/32", "dev", "lo")
	run(t, "ip", "-n", m.namespace, "address", "add", "10.64.1.1/32", "dev", "lo")
	c, stop = m.agent()
	c.SetNames(Names{Listen: []netip.AddrPort{m.server()}, Ranges: m.setup.Ranges})
	c.SetServices([]resolver.Service{service("shop", "api", "10.128.0.1"), service("bank", "vault", "10.128.0.2")})
	m.peer() // the process runs
	c.SetClients(t.Context(), map[netip.Addr]resolver.Client{netip.MustParseAddr("10.64.1.7"): {Namespace: "shop"}}, nil)
	return m, c, stop
}

func TestNamesOutliveTheAgentAndTheProcess(t *testing.T) {
	m, c, stop := withNames(t)
	if got := m.dig("api.shop", "10.64.1.7"); got != "10.128.0.1" {
		t.Fatalf("the address is %q", got)
	}
	if got := m.dig("vault.bank", "10.64.1.7"); got != "" {
		t.Errorf("another namespace is visible: %q", got)
	}
	c.UpdateServices([]resolver.Service{service("shop", "new", "10.128.0.3"), service("shop", "gone", "10.128.0.4")}, nil)
	c.UpdateServices(nil, []resolver.Name{{Namespace: "shop", Name: "gone"}})
	c.SetClients(t.Context(), map[netip.Addr]resolver.Client{netip.MustParseAddr("10.64.1.7"): {Namespace: "shop"}}, nil) // returns after what was said before
	if got := m.dig("new.shop", "10.64.1.7") + m.dig("gone.shop", "10.64.1.7"); got != "10.128.0.3" {
		t.Errorf("after changes the addresses are %q", got)
	}
	run(t, "kill", "-9", m.pid())
	for m.dig("api.shop", "10.64.1.7") != "10.128.0.1" { // the agent starts another process, which learns everything again
	}
	stop()
	if got := m.dig("api.shop", "10.64.1.7"); got != "10.128.0.1" {
		t.Errorf("without an agent the address is %q", got)
	}
}

func TestLookupOfTheMachineFetchesServices(t *testing.T) {
	m, c, _ := withNames(t)
	answer := make(chan string)
	go func() { answer <- m.dig("late.depot", "10.64.1.1") }()
	if namespace := <-m.wanted; namespace != "depot" {
		t.Errorf("the process wants namespace %q", namespace)
	}
	c.UpdateServices([]resolver.Service{service("depot", "late", "10.128.0.9")}, nil)
	c.Fetched([]string{"depot"})
	if got := <-answer; got != "10.128.0.9" {
		t.Errorf("the address is %q", got)
	}
}

func TestLookupWithoutAnAgentLeavesNothingBehind(t *testing.T) {
	n := &names{process: &process{}, waiting: map[string]chan struct{}{}}
	if err := n.fetch(t.Context(), resolver.Name{Namespace: "depot", Name: "late"}); !errors.Is(err, errNoAgent) {
		t.Errorf("the lookup ended with %v", err)
	}
	if len(n.waiting) != 0 {
		t.Errorf("%d lookups wait", len(n.waiting))
	}
}

func TestTakenPortIsReported(t *testing.T) {
	m, _ := twoMachines(t)
	run(t, "ip", "-n", m.namespace, "address", "add", "10.64.1.1/32", "dev", "lo")
	other := exec.Command("ip", "netns", "exec", m.namespace, "busybox", "nc", "-l", "-p", "53")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = other.Process.Kill()
			_ = other.Wait()
		}
	}
	t.Cleanup(end)
	for !strings.Contains(run(t, "ip", "netns", "exec", m.namespace, "ss", "-ltn"), ":53 ") {
	}
	c, _ := m.agent()
	c.SetNames(Names{Listen: []netip.AddrPort{m.server()}})
	why := <-m.resolver
	for why == "" {
		why = <-m.resolver
	}
	if !strings.Contains(why, "10.64.1.1:53") || !strings.Contains(why, "address already in use") {
		t.Errorf("the problem is %q", why)
	}
	end()
	for why != "" {
		why = <-m.resolver
	}
}

// The process hears of several changes at once, and removes peers before it adds others.
func TestRemovedPeerIsNotAddedAgain(t *testing.T) {
	c := NewClient(Options{})
	c.SetPeers(nil)
	c.pending = request{} // it has heard that
	c.UpdatePeers([]mesh.Peer{{ID: "node/1"}, {ID: "node/2"}}, nil)
	c.UpdatePeers(nil, []string{"node/1"})
	if len(c.pending.Changed) != 1 || c.pending.Changed[0].ID != "node/2" || !slices.Equal(c.pending.Removed, []string{"node/1"}) {
		t.Errorf("the process hears %+v", c.pending)
	}
}
