package nodenet

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// ruleset is what was written into our table.
type ruleset struct {
	table *nft.Table

	mu         sync.Mutex          // held while parts are described and written
	parts      map[string]bool     // names of those that apply has written
	numbers    map[string]uint32   // of balancers, by the names of their chains
	opened     map[string][]string // interfaces that forward only because of us
	namespaces map[string]uint32
	remote     map[netip.Addr]string // namespaces of other nodes' replicas
}

func newRuleset(table string) *ruleset {
	return &ruleset{
		table: nft.New(table, tableSets()), parts: map[string]bool{}, numbers: map[string]uint32{},
		namespaces: map[string]uint32{}, remote: map[netip.Addr]string{},
	}
}

func (r *ruleset) setOpened(links map[string][]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = links
}

// numberOf gives each name a number of its own, for as long as this process lives.
func numberOf(numbers map[string]uint32, name string) uint32 {
	id, known := numbers[name]
	if !known {
		id = uint32(len(numbers)) + 1
		numbers[name] = id
	}
	return id
}

// apply writes the rules as they should be now. If that fails, the next check tries again.
func (n *Network) apply() error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	if !n.subnets().valid() {
		return ErrNotConfigured
	}
	parts := n.describe()
	for name := range n.rules.parts {
		if parts[name] == nil {
			parts[name] = nil
			delete(n.rules.parts, name)
		}
	}
	for name, p := range parts {
		if p != nil {
			n.rules.parts[name] = true
		}
	}
	return n.write(parts)
}

// describe is what the table should contain. The caller holds rules.mu.
func (n *Network) describe() map[string]*nft.Part {
	subnets := n.subnets()
	parts := map[string]*nft.Part{
		"base": base{bridge: n.opts.bridge(), mesh: n.opts.Mesh, subnets: subnets, ranges: n.store.ranges(), opened: n.rules.opened}.part(),
	}
	for uid, e := range n.store.all() {
		parts["endpoint/"+uid] = endpointPart(e.addresses(subnets), e.Namespace, numberOf(n.rules.namespaces, e.Namespace))
	}
	for name, id := range n.rules.namespaces {
		parts["namespace/"+name] = namespacePart(name, id)
	}
	for _, p := range n.published() {
		parts["publish/"+p.key.chain()] = p.part(numberOf(n.rules.numbers, p.key.chain()))
	}
	return parts
}

// verifyRules writes the rules again if another program has changed them.
func (n *Network) verifyRules() error {
	changed, err := n.rules.table.Restore()
	if err != nil {
		return fmt.Errorf("write the rules of table %s: %w", n.opts.table(), err)
	}
	if changed {
		n.sendEvent(Event{Warning: true, Reason: "RulesRestored", Message: fmt.Sprintf(
			"Somebody else changed or removed the rules of table inet %s; they were restored.", n.opts.table())})
	}
	return nil
}

// forgetFlows drops conntrack entries of datagrams that would go to a backend that no
// longer serves: the kernel sends those of a known flow where it sent the earlier ones.
func (n *Network) forgetFlows(ports []Port) {
	stale := staleFlows{serving: map[uint16]map[netip.Addr]bool{}}
	for _, p := range ports {
		if p.Protocol != "udp" {
			continue
		}
		serving := map[netip.Addr]bool{}
		for _, b := range n.backends(p.key()) {
			serving[b.v4], serving[b.v6] = true, true
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
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, stale); err != nil {
			n.log.Debug("flows of a changed port could not be forgotten; they end by themselves", "error", err)
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
