package nodenet

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/learned"
	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// cutFlows forgets the connections of an endpoint that its new rules do not allow: their next packet is that of a new
// connection, which the rules refuse. Nothing happens if the new rules allow everything that the old ones did.
func (n *Network) cutFlows(uid string, before, now *Egress) error {
	e, found := n.store.get(uid)
	if now == nil || !found || before != nil && !now.narrower(before) {
		return nil
	}
	known, err := n.learnedOf(e.addresses(n.subnets()))
	if err != nil {
		return fmt.Errorf("cut connections that the egress rules of %s no longer allow: %w", uid, err)
	}
	ranges := n.store.ranges()
	n.deleteFlows(forbiddenFlows{
		from: e.addresses(n.subnets()), egress: now, learned: known, inside: slices.Concat(ranges.Replicas, ranges.Services),
		subnets: n.subnets(),
	})
	return nil
}

// narrower reports whether rules lack one that earlier rules had.
func (e *Egress) narrower(before *Egress) bool {
	return e.Closed && !before.Closed || slices.ContainsFunc(before.Rules, func(old EgressRule) bool {
		return !slices.ContainsFunc(e.Rules, func(r EgressRule) bool { return r.covers(old) })
	})
}

// covers reports whether a rule allows all that another one does.
func (r EgressRule) covers(o EgressRule) bool {
	within := r.Name == o.Name && r.Prefix == o.Prefix
	if r.Prefix.IsValid() && o.Prefix.IsValid() {
		within = r.Prefix.Bits() <= o.Prefix.Bits() && r.Prefix.Contains(o.Prefix.Addr())
	}
	ports := len(r.Ports) == 0 || len(o.Ports) > 0 && !slices.ContainsFunc(o.Ports, func(p uint16) bool { return !slices.Contains(r.Ports, p) })
	return within && ports && (r.Protocol == "" || r.Protocol == o.Protocol)
}

// place is an address that was learned for a rule.
type place struct {
	rule    uint32
	address netip.Addr
}

// learnedOf are the addresses that were learned for an endpoint.
func (n *Network) learnedOf(addresses []netip.Addr) (map[place]bool, error) {
	c, err := nft.Connect()
	if err != nil {
		return nil, err
	}
	table := &nftables.Table{Name: n.opts.table(), Family: nftables.TableFamilyINet}
	known := map[place]bool{}
	for _, f := range families {
		elements, err := c.GetSetElements(&nftables.Set{Table: table, Name: learned.SetName(f == ipv4)})
		if err != nil && !nft.IsMissing(err) {
			return nil, fmt.Errorf("read the learned addresses: %w", err)
		}
		size := int(f.size)
		for _, e := range elements {
			if len(e.Key) != 2*size+4 {
				continue
			}
			replica, _ := netip.AddrFromSlice(e.Key[:size])
			address, _ := netip.AddrFromSlice(e.Key[size+4:])
			if slices.Contains(addresses, replica) {
				known[place{binaryutil.NativeEndian.Uint32(e.Key[size:]), address}] = true
			}
		}
	}
	return known, nil
}

// forbiddenFlows are the connections that an endpoint began and its rules do not allow.
type forbiddenFlows struct {
	from    []netip.Addr
	egress  *Egress
	learned map[place]bool
	inside  []netip.Prefix // ranges of the cluster
	subnets Subnets
}

// MatchConntrackFlow reports whether a flow is forbidden.
func (f forbiddenFlows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	from, _ := netip.AddrFromSlice(flow.Forward.SrcIP)
	if !slices.Contains(f.from, from.Unmap()) {
		return false
	}
	asked, _ := netip.AddrFromSlice(flow.Forward.DstIP)
	answers, _ := netip.AddrFromSlice(flow.Reverse.SrcIP)
	asked, answers = asked.Unmap(), answers.Unmap()
	stays := slices.ContainsFunc(f.inside, func(p netip.Prefix) bool { return p.Contains(answers) }) || f.subnets.contain(answers)
	if stays && (!f.egress.Closed || flow.Forward.DstPort == DNSPort && f.isGateway(answers)) {
		return false
	}
	return !slices.ContainsFunc(f.egress.Rules, func(r EgressRule) bool {
		switch {
		case r.Name != "":
			return f.learned[place{r.ID(), asked}] && r.matches(flow.Forward.Protocol, flow.Forward.DstPort)
		case stays:
			return false
		}
		return r.Prefix.Contains(answers) && r.matches(flow.Forward.Protocol, flow.Reverse.SrcPort)
	})
}

func (f forbiddenFlows) isGateway(a netip.Addr) bool {
	return a == at(f.subnets.V4, gateway) || f.subnets.V6.IsValid() && a == at(f.subnets.V6, gateway)
}

// matches reports whether a rule allows a protocol and a port.
func (r EgressRule) matches(protocol uint8, port uint16) bool {
	name := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[protocol]
	if r.Protocol != "" && r.Protocol != name || len(r.Ports) > 0 && name == "" {
		return false
	}
	return len(r.Ports) == 0 || slices.Contains(r.Ports, port)
}
