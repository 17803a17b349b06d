package nodenet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// usage is a range of addresses and the interface that it leads to.
type usage struct {
	prefix netip.Prefix
	link   string
}

// Used returns the ranges of addresses that the machine's interfaces and routes already
// use, so that a cluster can avoid them.
func Used() ([]netip.Prefix, error) {
	return usedBy(func(string) bool { return true })
}

// UsedByOthers are those of Used that no cloud has: the clouds of a machine can
// share a range, because each takes a small part of it.
func UsedByOthers() ([]netip.Prefix, error) {
	return usedBy(isForeign)
}

func isForeign(link string) bool { return !Own(link) }

// ForeignNetworks are those of UsedByOthers with the interface that each leads to.
func ForeignNetworks() (map[netip.Prefix]string, error) {
	list, err := used()
	networks := map[netip.Prefix]string{}
	for _, u := range list {
		if isForeign(u.link) {
			networks[u.prefix] = u.link
		}
	}
	return networks, err
}

func usedBy(counts func(link string) bool) ([]netip.Prefix, error) {
	list, err := used()
	if err != nil {
		return nil, err
	}
	var prefixes []netip.Prefix
	for _, u := range list {
		if counts(u.link) && !slices.Contains(prefixes, u.prefix) {
			prefixes = append(prefixes, u.prefix)
		}
	}
	return prefixes, nil
}

func used() ([]usage, error) {
	links, err := retry(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var list []usage
	add := func(p netip.Prefix, index int) {
		if a := p.Addr(); p.Bits() > 0 && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() {
			list = append(list, usage{p.Masked(), names[index]})
		}
	}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			add(p, a.LinkIndex)
		}
	}
	routes, err := retry(func() ([]netlink.Route, error) { return netlink.RouteList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if p, ok := prefixOf(r.Dst); ok && r.Type == unix.RTN_UNICAST {
			add(p, r.LinkIndex)
		}
	}
	return list, nil
}

func serviceSetting(p netip.Prefix) string {
	if p.Addr().Is4() {
		return "serviceRangeV4"
	}
	return "serviceRangeV6"
}

// collision says in a sentence that something else on the machine uses the node's ranges or those of services.
// It is empty if nothing does.
func (n *Network) collision() (string, error) {
	list, err := used()
	if err != nil {
		return "", err
	}
	s := n.subnets()
	for _, u := range list {
		for _, services := range n.store.ranges().Services {
			// The clouds of a machine may share a range: each has rules of its own.
			if !Own(u.link) && u.prefix.Overlaps(services) && u.prefix.Bits() >= services.Bits() {
				return fmt.Sprintf("The range of services %v overlaps %v on interface %s of this machine, so services may be unreachable from here: "+
					"give that interface other addresses, or choose another range with: cloudless cluster config set %s=RANGE.", services, u.prefix, u.link, serviceSetting(services)), nil
			}
		}
		for _, own := range []netip.Prefix{s.V4, s.V6} {
			// A larger range behind another interface loses against our own route, and so does every route of a mesh.
			if own.IsValid() && u.link != n.opts.bridge() && !strings.HasPrefix(u.link, meshPrefix) && u.prefix.Overlaps(own) && u.prefix.Bits() >= own.Bits() {
				return fmt.Sprintf("The node's subnet %v overlaps %v on interface %s of this machine, so replicas may be unreachable: "+
					"give that interface other addresses, or remove the node and join again for another subnet.", own, u.prefix, u.link), nil
			}
		}
	}
	return "", nil
}
