package e2e

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// lan simulates machines with network namespaces that are connected to one switch. They
// have the addresses PREFIX.1, PREFIX.2 and so on. The switch is private to the story,
// so every story may use the same prefix:
//
//	lan 10.215.1 s1 s2 s3
//
// Run programs on them with: exec nsenter --net=$s1 …
func lan(ts *testscript.TestScript, _ bool, args []string) {
	prefix, machines := args[0], args[1:]
	hub := networkFor(ts).name("hub")
	ipDo := func(step ...string) {
		if out, err := exec.Command("ip", step...).CombinedOutput(); err != nil {
			ts.Fatalf("ip %s: %v\n%s", strings.Join(step, " "), err, out)
		}
	}
	add := func(space string) {
		ipDo("netns", "add", space)
		ts.Defer(func() { _ = exec.Command("ip", "netns", "del", space).Run() })
		ipDo("-n", space, "link", "set", "lo", "up")
	}
	add(hub)
	ipDo("-n", hub, "link", "add", "switch", "type", "bridge")
	ipDo("-n", hub, "link", "set", "switch", "up")
	for i, machine := range machines {
		space := networkFor(ts).name(machine)
		add(space)
		ipDo("-n", hub, "link", "add", machine, "master", "switch", "type", "veth", "peer", "name", "eth0", "netns", space)
		ipDo("-n", hub, "link", "set", machine, "up")
		ipDo("-n", space, "addr", "add", fmt.Sprintf("%s.%d/24", prefix, i+1), "dev", "eth0")
		ipDo("-n", space, "link", "set", "eth0", "up")
		ts.Setenv(machine, "/run/netns/"+space)
	}
}

// cable disconnects a machine from the switch, or connects it again:
//
//	cable s1 down
func cable(ts *testscript.TestScript, _ bool, args []string) {
	out, err := exec.Command("ip", "-n", networkFor(ts).name("hub"), "link", "set", args[0], args[1]).CombinedOutput()
	if err != nil {
		ts.Fatalf("cable of %s: %v\n%s", args[0], err, out)
	}
}
