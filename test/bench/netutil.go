package main

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// bringUp gives an interface an address and brings it up; in is the namespace, nil for this
// one.
func bringUp(in *netlink.Handle, name string, address netip.Prefix) error {
	if in == nil {
		in = &netlink.Handle{}
	}
	link, err := in.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	if err := in.AddrAdd(link, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
		return fmt.Errorf("give %s its address: %w", name, err)
	}
	return in.LinkSetUp(link)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
