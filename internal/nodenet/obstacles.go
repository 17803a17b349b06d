package nodenet

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// Obstacle is a foreign rule that drops what replicas send or should receive.
type Obstacle struct {
	// Sentence says what it is and what it does.
	Sentence string
	// Mend is the command that lets the traffic pass.
	Mend string
}

// Obstacles finds what blocks the clouds on this machine or, if there is none yet, a future
// one.
func Obstacles(ctx context.Context) ([]Obstacle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	links, err := retry(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var nets []bridgeNet
	for _, l := range links {
		if l.Type() == "bridge" && strings.HasPrefix(l.Attrs().Name, bridgePrefix) {
			nets = append(nets, bridgeNetOf(l))
		}
	}
	if len(nets) == 0 {
		nets = []bridgeNet{{bridge: bridgePrefix + "00000000"}}
	}
	return obstaclesOf(nets)
}

// bridgeNet is a bridge with its subnets, if known, and the published ports that lead there.
type bridgeNet struct {
	bridge   string
	index    int // of the bridge, 0 if unknown
	subnets  Subnets
	forwards []portForward
}

// portForward is where a published port leads.
type portForward struct {
	from portKey
	to   netip.AddrPort
}

func (n *Network) bridgeNet() bridgeNet {
	g := bridgeNet{bridge: n.opts.bridge(), subnets: n.subnets()}
	if link, err := netlink.LinkByName(g.bridge); err == nil {
		g.index = link.Attrs().Index
	}
	forward := func(key portKey, backends []netip.AddrPort) {
		for _, to := range slices.Compact(slices.Clone(backends)) { // one with a large weight is listed several times
			if g.subnets.contain(to.Addr()) {
				g.forwards = append(g.forwards, portForward{key, to})
			}
		}
	}
	for _, p := range n.published() {
		forward(p.key, p.backends)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, published := range n.everywhere {
		forward(key, published.to)
	}
	return g
}

func bridgeNetOf(bridge netlink.Link) bridgeNet {
	g := bridgeNet{bridge: bridge.Attrs().Name, index: bridge.Attrs().Index}
	addrs, _ := netlink.AddrList(bridge, netlink.FAMILY_ALL)
	for _, a := range addrs {
		p, ok := prefixOf(a.IPNet)
		switch {
		case !ok || p.Addr().IsLinkLocalUnicast():
		case p.Addr().Is4():
			g.subnets.V4 = p.Masked()
		default:
			g.subnets.V6 = p.Masked()
		}
	}
	return g
}

// packets are what must pass: out, in, and from one replica to another, of both families,
// and through published ports. Packets between replicas are forwarded if they use an
// address of the machine.
func (g bridgeNet) packets() []packet {
	list := g.kinds()
	for _, d := range g.forwards {
		list = append(list, packet{
			words: fmt.Sprintf("what comes in by published port %v", d.from), index: g.index,
			family: familyOf(netip.PrefixFrom(d.to.Addr(), 0)), out: g.bridge,
			destination: netip.PrefixFrom(d.to.Addr(), d.to.Addr().BitLen()),
			protocol:    d.from.number4(), port: d.to.Port(),
		})
	}
	return list
}

func (g bridgeNet) kinds() []packet {
	var list []packet
	for _, subnet := range []netip.Prefix{g.subnets.V4, g.subnets.V6} {
		p := packet{family: familyOf(subnet), index: g.index}
		if subnet.IsValid() {
			p.source = subnet
		}
		out, in, across := p, p, p
		out.words, out.in = "what replicas send to other machines", g.bridge
		in.words, in.out, in.source, in.destination = "what other machines send to replicas", g.bridge, netip.Prefix{}, p.source
		across.words, across.in, across.out, across.destination = "what replicas send to each other", g.bridge, g.bridge, p.source
		list = append(list, out, in, across)
		if !g.subnets.V6.IsValid() {
			break // unknown, or missing
		}
	}
	return list
}

// obstaclesOf evaluates every foreign chain that forwarded packets pass with our packets.
func obstaclesOf(nets []bridgeNet) ([]Obstacle, error) {
	c, err := nft.Connect()
	if err != nil {
		return nil, fmt.Errorf("look at the machine's rules: %w", err)
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("look at the machine's rules: %w", err)
	}
	firewall := &firewall{
		conn: c, chains: map[chainKey]*nftables.Chain{}, rules: map[chainKey][]*nftables.Rule{}, sets: map[chainKey][]nftables.SetElement{},
	}
	for _, chain := range chains {
		firewall.chains[keyOf(chain)] = chain
	}
	for i, g := range nets {
		if g.forwards == nil {
			nets[i].forwards = slices.DeleteFunc(firewall.forwardsOf(g.bridge), func(f portForward) bool { return !g.subnets.contain(f.to.Addr()) })
		}
	}
	var found []Obstacle
	for _, chain := range chains {
		if chain.Hooknum == nil || *chain.Hooknum != *nftables.ChainHookForward || chain.Type == nftables.ChainTypeNAT ||
			strings.HasPrefix(chain.Table.Name, tablePrefix) {
			continue
		}
		for _, g := range nets {
			if o, blocked := firewall.judge(chain, g); blocked {
				found = append(found, o)
			}
		}
	}
	return found, nil
}

// portChain matches the chains of ports that endpoints and services publish.
var portChain = regexp.MustCompile(`^(?:service_[a-z0-9.-]+_published_)?(tcp|udp)_([0-9]+)(_.+)?$`)

// forwardsOf reads from the rules of a cloud where its published ports lead.
func (c *firewall) forwardsOf(bridge string) []portForward {
	table := tablePrefix + strings.TrimPrefix(bridge, bridgePrefix)
	var forwards []portForward
	for key, chain := range c.chains {
		name := portChain.FindStringSubmatch(key.name)
		if key.table != table || name == nil {
			continue
		}
		number, err := strconv.ParseUint(name[2], 10, 16)
		if err != nil {
			continue
		}
		for _, r := range c.rulesOf(chain) {
			for _, to := range c.backendsOf(chain.Table, r.Exprs) {
				forwards = append(forwards, portForward{portKey{protocol: name[1], number: uint16(number)}, to})
			}
		}
	}
	slices.SortFunc(forwards, func(a, b portForward) int {
		return cmp.Or(cmp.Compare(a.from.number, b.from.number), cmp.Compare(a.from.protocol, b.from.protocol), a.to.Compare(b.to))
	})
	return forwards
}

// backendsOf are those to which one of our rules leads, by a map.
func (c *firewall) backendsOf(table *nftables.Table, rule []expr.Any) []netip.AddrPort {
	var found []netip.AddrPort
	for _, e := range rule {
		lookup, ok := e.(*expr.Lookup)
		if !ok {
			continue
		}
		for _, element := range c.elementsOf(table, lookup.SetName) {
			size := max(len(element.Val)-4, 0) // the port fills a register
			if addr, ok := netip.AddrFromSlice(element.Val[:size]); ok {
				found = append(found, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(element.Val[size:])))
			}
		}
	}
	return found
}

// judge finds the first kind of packet that the chain drops.
func (c *firewall) judge(chain *nftables.Chain, g bridgeNet) (Obstacle, bool) {
	for _, p := range g.packets() {
		if !concerns(chain.Table.Family, p) {
			continue
		}
		verdict, rule := c.walk(chain, p, 0)
		name := fmt.Sprintf("chain %s of table %s %s", chain.Name, familyName(chain.Table.Family), chain.Table.Name)
		switch {
		case verdict == dropped && rule != nil:
			name = fmt.Sprintf("rule %d in chain %s of table %s %s", rule.Handle, rule.Chain.Name, familyName(chain.Table.Family), chain.Table.Name)
			return Obstacle{Sentence: fmt.Sprintf("The firewall's %s drops %s (bridge %s).", name, p.words, g.bridge), Mend: mend(c, chain, g.bridge)}, true
		case verdict == undecided && chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop:
			return Obstacle{Sentence: fmt.Sprintf("The firewall's %s has policy drop and lets %s not pass (bridge %s).", name, p.words, g.bridge), Mend: mend(c, chain, g.bridge)}, true
		}
	}
	return Obstacle{}, false
}

func concerns(f nftables.TableFamily, p packet) bool {
	switch f {
	case nftables.TableFamilyIPv4:
		return p.family == nftables.TableFamilyIPv4
	case nftables.TableFamilyIPv6:
		return p.family == nftables.TableFamilyIPv6
	default:
		return f == nftables.TableFamilyINet
	}
}

// mend is the command for the program that manages the chain.
func mend(c *firewall, chain *nftables.Chain, bridge string) string {
	table, family := chain.Table.Name, familyName(chain.Table.Family)
	has := func(name string) bool {
		_, found := c.chains[chainKey{chain.Table.Family, table, name}]
		return found
	}
	iptables := "iptables"
	if chain.Table.Family == nftables.TableFamilyIPv6 {
		iptables = "ip6tables"
	}
	switch {
	case table == "firewalld":
		return fmt.Sprintf("firewall-cmd --permanent --zone=trusted --add-interface=%s && firewall-cmd --reload", bridge)
	case has("ufw-user-forward") || has("ufw6-user-forward"):
		return fmt.Sprintf("ufw route allow in on %[1]s && ufw route allow out on %[1]s", bridge)
	case has("DOCKER-USER"):
		return fmt.Sprintf("%[1]s -I DOCKER-USER -i %[2]s -j ACCEPT && %[1]s -I DOCKER-USER -o %[2]s -j ACCEPT", iptables, bridge)
	case table == "filter" && chain.Name == "FORWARD":
		return fmt.Sprintf("%[1]s -I FORWARD -i %[2]s -j ACCEPT && %[1]s -I FORWARD -o %[2]s -j ACCEPT", iptables, bridge)
	default:
		return fmt.Sprintf("nft insert rule %[1]s %[2]s %[3]s iifname %[4]s accept && nft insert rule %[1]s %[2]s %[3]s oifname %[4]s accept",
			family, table, chain.Name, bridge)
	}
}

// sentences are those of the obstacles with their commands.
func sentences(list []Obstacle) string {
	var all []string
	for _, o := range list {
		all = append(all, o.Sentence+" Let it pass with: "+o.Mend)
	}
	return strings.Join(all, " ")
}

func familyName(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	default:
		return fmt.Sprintf("family %d", f)
	}
}

func familyOf(p netip.Prefix) nftables.TableFamily {
	if p.IsValid() && p.Addr().Is6() {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// packet is the first of a new connection, as far as it is known.
type packet struct {
	words               string
	family              nftables.TableFamily
	in, out             string // names of interfaces; empty for any but the bridge
	index               int    // of the bridge
	source, destination netip.Prefix
	protocol            byte // 0 if unknown, and so is the port
	port                uint16
}

type chainKey struct {
	family      nftables.TableFamily
	table, name string
}

func keyOf(c *nftables.Chain) chainKey { return chainKey{c.Table.Family, c.Table.Name, c.Name} }

// firewall evaluates the machine's rules, and reads each chain once.
type firewall struct {
	conn   *nftables.Conn
	chains map[chainKey]*nftables.Chain
	rules  map[chainKey][]*nftables.Rule
	sets   map[chainKey][]nftables.SetElement
}

func (c *firewall) rulesOf(chain *nftables.Chain) []*nftables.Rule {
	key := keyOf(chain)
	rules, known := c.rules[key]
	if !known {
		rules, _ = c.conn.GetRules(chain.Table, chain) // a missing chain has none
		c.rules[key] = rules
	}
	return rules
}

// elementsOf are those of a set.
func (c *firewall) elementsOf(table *nftables.Table, name string) []nftables.SetElement {
	key := chainKey{table.Family, table.Name, name}
	elements, known := c.sets[key]
	if !known {
		elements, _ = c.conn.GetSetElements(&nftables.Set{Table: table, Name: name}) // a missing set has none
		c.sets[key] = elements
	}
	return elements
}

// verdict is what happens to a packet.
type verdict int

const (
	undecided verdict = iota // it continues after the chain
	accepted
	dropped
)

// maxDepth is the kernel's limit for jumps.
const maxDepth = 16

// walk follows the packet through a chain. A rule counts only if it certainly matches; one
// that may match is skipped.
func (c *firewall) walk(chain *nftables.Chain, p packet, depth int) (verdict, *nftables.Rule) {
	if chain == nil || depth > maxDepth {
		return undecided, nil
	}
	for _, r := range c.rulesOf(chain) {
		r.Chain = chain
		what, target, matched := evaluate(r.Exprs, p, func(set string) []nftables.SetElement { return c.elementsOf(chain.Table, set) })
		if !matched {
			continue
		}
		switch what {
		case expr.VerdictAccept:
			return accepted, r
		case expr.VerdictDrop:
			return dropped, r
		case expr.VerdictReturn:
			return undecided, nil
		case expr.VerdictJump, expr.VerdictGoto:
			v, by := c.walk(c.chains[chainKey{chain.Table.Family, chain.Table.Name, target}], p, depth+1)
			if v != undecided || what == expr.VerdictGoto {
				return v, by
			}
		}
	}
	return undecided, nil
}
