package nodenet_test

import (
	"os"
	"testing"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// The machine carries packets between other networks only if it would without us.
func TestOtherNetworksStayApart(t *testing.T) {
	l := newLab(t)
	setForwarding(t, "ipv4/ip_forward", "0")
	l.attach("a", "web", tcp(8080, insidePort))
	l.connectOther()
	for _, addr := range []string{"203.0.113.2:8000", "[2001:db8:1::2]:8000"} {
		l.apart(addr)
	}
	// Somebody makes this machine a router.
	for _, name := range []string{"ipv4/ip_forward", forwardingIPv6} {
		setForwarding(t, name, "1")
	}
	for _, addr := range []string{"203.0.113.2:8000", "[2001:db8:1::2]:8000"} {
		eventually(t, func() error { _, _, err := ask(l.outside, "tcp", addr); return err })
	}
}

const forwardingIPv6 = "ipv6/conf/all/forwarding"

// Linux before 6.17 forwards IPv6 on all interfaces or on none. The rules keep other networks apart nevertheless, also
// those that appear later.
func TestOtherNetworksStayApartOnOldKernels(t *testing.T) {
	l := newLabWith(t, (*nodenet.Options).LikeOldKernel)
	a := l.attach("a", "web", tcp(8080, insidePort))
	l.serve(l.outside, "outside")
	if now, err := os.ReadFile("/proc/sys/net/" + forwardingIPv6); err != nil || string(now) != "1\n" {
		t.Fatalf("the machine is no router: %s, %v", now, err)
	}
	l.connectOther()
	l.apart("[2001:db8:1::2]:8000")
	l.open(l.outside, "tcp", "["+here6+"]:8080", "a")
	l.open(a.Namespace, "tcp", "["+there6+"]:8000", "outside")
	// Packets of another cloud on this machine are left to its own rules.
	cloud := l.connect("cl-another1", []string{"2001:db8:2::1/64"}, []string{"2001:db8:2::2/64"})
	l.run(cloud, "ip", "route", "add", "default", "via", "2001:db8:2::1")
	l.open(cloud, "tcp", "["+there6+"]:8000", "outside")
	l.restart()
	_, err := l.network.Attach(t.Context(), nodenet.Endpoint{UID: "a", Group: "web", Owner: "web", Ports: []nodenet.Port{tcp(8080, insidePort)}}) // returns with the rules written
	l.must(err)
	l.apart("[2001:db8:1::2]:8000")
	// The operator makes this machine a router.
	setForwarding(t, forwardingIPv6, "2")
	l.restart() // the kernel does not announce the change
	eventually(t, func() error { _, _, err := ask(l.outside, "tcp", "[2001:db8:1::2]:8000"); return err })
}

// A machine that was a router before us still is one.
func TestRouterWithAnOldKernelStaysRouter(t *testing.T) {
	setForwarding(t, forwardingIPv6, "1")
	l := newLabWith(t, (*nodenet.Options).LikeOldKernel)
	l.attach("a", "web", tcp(8080, insidePort))
	l.connectOther()
	l.open(l.outside, "tcp", "[2001:db8:1::2]:8000", "other")
}

// setForwarding changes a setting of the machine until the test ends.
func setForwarding(t *testing.T, name, value string) {
	t.Helper()
	if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile("/proc/sys/net/"+name, []byte("0"), 0) })
}

// connectOther connects this machine to another network with a machine that answers. Both networks use this machine as
// their router.
func (l *lab) connectOther() {
	l.t.Helper()
	other := l.connect("other", []string{"203.0.113.1/24", "2001:db8:1::1/64"}, []string{"203.0.113.2/24", "2001:db8:1::2/64"})
	for namespace, gateways := range map[string][]string{l.outside: {here4, here6}, other: {"203.0.113.1", "2001:db8:1::1"}} {
		for _, gateway := range gateways {
			l.run(namespace, "ip", "route", "add", "default", "via", gateway)
		}
	}
	l.serve(other, "other")
	for _, addr := range []string{"203.0.113.1:8080", "[2001:db8:1::1]:8080"} { // once the new uplink forwards
		eventually(l.t, func() error { _, _, err := ask(other, "tcp", addr); return err })
	}
}

// apart checks that the outside does not reach an address through this machine.
func (l *lab) apart(addr string) {
	l.t.Helper()
	l.closed(l.outside, "tcp", addr, "", "transit")
}
