package nodenet

import (
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
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

// goneBackends are backends that left a service: the kernel would send datagrams of known flows there for ever, and new
// connections from the ports of connections that have ended there for some seconds.
type goneBackends struct{ udp, tcp map[netip.AddrPort]bool }

// left notes the backends that a service had before and has no more.
func (g *goneBackends) left(before, now Service) {
	if len(before.Backends) == 0 {
		return
	}
	for protocol, gone := range map[string]*map[netip.AddrPort]bool{"udp": &g.udp, "tcp": &g.tcp} {
		stays := map[netip.AddrPort]bool{}
		for _, to := range now.backendsFor(protocol) {
			stays[to] = true
		}
		for _, to := range before.backendsFor(protocol) {
			if !stays[to] {
				if *gone == nil {
					*gone = map[netip.AddrPort]bool{}
				}
				(*gone)[to] = true
			}
		}
	}
}

func (s Service) backendsFor(protocol string) []netip.AddrPort {
	var list []netip.AddrPort
	for _, p := range s.Ports {
		if p.Protocol != protocol {
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

func (g *goneBackends) forget(n *Network) {
	if len(g.udp) > 0 {
		n.deleteFlows(datagramFlows(g.udp))
	}
	if len(g.tcp) > 0 {
		n.ended.forget(n, g.tcp)
	}
}

// translatedTo reports whether a flow was translated to one of these backends. Flows that clients sent there directly
// are not ours.
func translatedTo(flow *netlink.ConntrackFlow, gone map[netip.AddrPort]bool) bool {
	asked, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	return asked != answers && gone[netip.AddrPortFrom(answers.Unmap(), flow.Reverse.SrcPort)]
}

// datagramFlows are those to some backends.
type datagramFlows map[netip.AddrPort]bool

// MatchConntrackFlow matches flows to those backends.
func (f datagramFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	return flow.Forward.Protocol == unix.IPPROTO_UDP && translatedTo(flow, f)
}

// endedFlows are TCP connections to some backends that were reset or not answered. Their entries outlive them: a client
// that connects from the same port within seconds would be sent to the backend that is gone.
type endedFlows map[netip.AddrPort]bool

// MatchConntrackFlow matches flows to those backends.
func (f endedFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	tcp, ok := flow.ProtoInfo.(*netlink.ProtoInfoTCP)
	return ok && (tcp.State == nl.TCP_CONNTRACK_CLOSE || tcp.State == nl.TCP_CONNTRACK_SYN_SENT) && translatedTo(flow, f)
}

// ended forgets connections in the background. A connection may end after its backend has left, so each backend gets
// several passes. A pass reads all connections of the machine: passes take at most a tenth of the time.
type ended struct {
	mu      sync.Mutex
	left    map[netip.AddrPort]int // how many passes each backend gets
	running bool
	wake    chan struct{}
}

const (
	endedPasses = 3
	endedPause  = 500 * time.Millisecond
)

func newEnded() ended { return ended{left: map[netip.AddrPort]int{}, wake: make(chan struct{}, 1)} }

func (e *ended) forget(n *Network, gone map[netip.AddrPort]bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for to := range gone {
		e.left[to] = endedPasses
	}
	if !e.running {
		e.running = true
		go e.run(n) // ends with the last pass
		return
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *ended) run(n *Network) {
	for gone := e.next(); len(gone) > 0; gone = e.next() {
		began := time.Now()
		n.deleteFlows(gone)
		time.Sleep(9 * time.Since(began))
		select {
		case <-e.wake:
		case <-time.After(endedPause):
		}
	}
}

// next takes the backends of the next pass.
func (e *ended) next() endedFlows {
	e.mu.Lock()
	defer e.mu.Unlock()
	gone := endedFlows{}
	for to := range e.left {
		gone[to] = true
		if e.left[to]--; e.left[to] == 0 {
			delete(e.left, to)
		}
	}
	e.running = len(gone) > 0
	return gone
}
