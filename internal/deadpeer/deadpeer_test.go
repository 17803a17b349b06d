package deadpeer

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// A dead peer is detected while sent data is unacknowledged, when the kernel's default would wait longest.
func TestDeadPeerIsDetected(t *testing.T) {
	if testing.Short() {
		t.Skip("needs root for a network of its own; make test runs it")
	}
	dial, listener, vanish := twoMachines(t)
	conn, err := dial(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	other, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	vanish()
	if _, err := conn.Write([]byte("is anybody there?")); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Minute)); err != nil { // far less than the kernel's default
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("a read from the dead peer returned %v, want a timeout", err)
	}
}

// twoMachines creates two network namespaces that are connected by a veth pair.
func twoMachines(t *testing.T) (dial func(string) (net.Conn, error), listener net.Listener, vanish func()) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	home, err := netns.Get()
	must(err)
	t.Cleanup(func() { _ = home.Close() })
	t.Cleanup(func() { must(netns.Set(home)) })
	there, err := netns.New()
	must(err)
	t.Cleanup(func() { _ = there.Close() })
	here, err := netns.New()
	must(err)
	t.Cleanup(func() { _ = here.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "wire"
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "wire", PeerNamespace: netlink.NsFd(there)}))
	up := func(address string) netlink.Link {
		link, err := netlink.LinkByName("wire")
		must(err)
		prefix := netip.MustParsePrefix(address)
		must(netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)}}))
		must(netlink.LinkSetUp(link))
		return link
	}
	up("10.78.0.1/30")
	must(netns.Set(there))
	link := up("10.78.0.2/30")
	listener, err = net.Listen("tcp", "10.78.0.2:0")
	must(err)
	t.Cleanup(func() { _ = listener.Close() })
	must(netns.Set(here))
	return func(address string) (net.Conn, error) { return Dialer().Dial("tcp", address) }, listener, func() {
		must(netns.Set(there))
		must(netlink.LinkSetDown(link))
		must(netns.Set(here))
	}
}
