package nodenet

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forgetFlows drops conntrack entries of datagrams that would go to a backend that no
// longer serves: the kernel sends those of a known flow where it sent the earlier ones.
func (n *Network) forgetFlows(ports []Port) {
	stale := staleFlows{serving: map[uint16]map[netip.Addr]bool{}}
	for _, p := range ports {
		if p.Protocol != "udp" {
			continue
		}
		serving := map[netip.Addr]bool{}
		for _, to := range n.backends(p.key()) {
			serving[to.Addr()] = true
		}
		stale.serving[p.Host] = serving
	}
	if len(stale.serving) == 0 {
		return
	}
	addrs, err := retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		n.log.Debug("flows of a changed port could not be forgotten; they end by themselves", "error", err)
		return
	}
	stale.local = map[netip.Addr]bool{}
	for _, a := range addrs {
		if p, ok := prefixOf(a.IPNet); ok {
			stale.local[p.Addr()] = true
		}
	}
	n.deleteFlows(stale)
}

func (n *Network) deleteFlows(which netlink.CustomConntrackFilter) {
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, which); err != nil {
			n.log.Debug("flows could not be forgotten; they end by themselves", "error", err)
		}
	}
}

// staleFlows are flows to ports of this machine that go to a backend that no longer serves.
// Flows to other machines are not ours.
type staleFlows struct {
	serving map[uint16]map[netip.Addr]bool // serving backends, by UDP port
	local   map[netip.Addr]bool            // the machine's addresses
}

// MatchConntrackFlow reports whether a flow is stale.
func (s staleFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	serving, published := s.serving[flow.Forward.DstPort]
	if !published || flow.Forward.Protocol != unix.IPPROTO_UDP {
		return false
	}
	asked, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	if asked = asked.Unmap(); !asked.IsLoopback() && !s.local[asked] {
		return false
	}
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return !serving[answers.Unmap()]
}

// goneBackends are UDP backends that left a service: the kernel would send datagrams of known flows there for ever.
type goneBackends map[netip.AddrPort]bool

// left notes the UDP backends that a service had before and has no more.
func (g goneBackends) left(before, now Service) {
	if len(before.Backends) == 0 {
		return
	}
	stays := map[netip.AddrPort]bool{}
	for _, to := range now.datagramBackends() {
		stays[to] = true
	}
	for _, to := range before.datagramBackends() {
		if !stays[to] {
			g[to] = true
		}
	}
}

func (s Service) datagramBackends() []netip.AddrPort {
	var list []netip.AddrPort
	for _, p := range s.Ports {
		if p.Protocol != "udp" {
			continue
		}
		for _, b := range s.Backends {
			for _, addr := range b.Addresses {
				list = append(list, netip.AddrPortFrom(addr, p.Target))
			}
		}
	}
	return list
}

func (g goneBackends) forget(n *Network) {
	if len(g) > 0 {
		n.deleteFlows(g)
	}
}

// MatchConntrackFlow matches translated flows to those backends. Flows that clients sent there directly are not ours.
func (g goneBackends) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	asked, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return flow.Forward.Protocol == unix.IPPROTO_UDP && asked != answers && g[netip.AddrPortFrom(answers.Unmap(), flow.Reverse.SrcPort)]
}
