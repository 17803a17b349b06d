package ingressd

import (
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/nodenet"
)

// Queries to the address of a node's bridge are for its resolver, and those to all other addresses may be for a route.
func TestAddressesOfBridgesAreKnown(t *testing.T) {
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := must.Get(netns.Get())(t)
	defer before.Close()
	ns := must.Get(netns.New())(t)
	defer ns.Close()
	defer func() { must.Succeed(t, netns.Set(before)) }()
	for name, address := range map[string]string{bridgePrefix + "testtest": "10.64.3.1/24", "wire": "198.51.100.1/24"} {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		must.Succeed(t, netlink.LinkAdd(link))
		must.Succeed(t, netlink.AddrAdd(link, must.Get(netlink.ParseAddr(address))(t)))
	}
	b := new(bridges)
	if !b.have(netip.MustParseAddr("10.64.3.1")) || b.have(netip.MustParseAddr("198.51.100.1")) || b.have(netip.Addr{}) {
		t.Errorf("the addresses are %v", b.known)
	}
	if !nodenet.Own(bridgePrefix + "testtest") {
		t.Errorf("no bridge of a node has a name that begins with %s", bridgePrefix)
	}
}
