package nodenet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// balancer is a chain that chooses one of several backends for a new connection.
type balancer struct {
	chain string
	// slots are what it draws from, of both families. A backend may have several.
	slots []netip.AddrPort
	// With affinity, usable are the backends that keep their clients, and clients is the set of them.
	usable  []netip.AddrPort
	clients func(netip.Addr) nft.Set
}

// of are the slots of a family.
func (b balancer) of(f ipFamily) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(b.slots), func(to netip.AddrPort) bool { return familyOfAddr(to.Addr()) != f })
}

// describe adds the chain to a part: for each family, draw a slot, look its backend up, translate. Without backends of a
// family, connections of that family pass untranslated.
func (b balancer) describe(p *nft.Part) {
	chain := nft.Chain{Name: b.chain}
	for _, to := range b.usable {
		f := familyOfAddr(to.Addr())
		chain.Rules = append(chain.Rules, join(f.is(), []expr.Any{f.loadSource(1), lookUp(b.clients(to.Addr()).Name, 1)}, goTo(b.keeper(to))))
		p.Chains = append(p.Chains, b.keep(to))
	}
	for _, f := range families {
		slots := b.of(f)
		if len(slots) == 0 {
			continue
		}
		set := b.set(f)
		p.Sets = append(p.Sets, set)
		for i, to := range slots {
			p.Elements = append(p.Elements, b.slot(set.Name, uint32(i), to))
		}
		draw := join(f.is(), []expr.Any{&expr.Numgen{Register: 1, Modulus: uint32(len(slots)), Type: unix.NFT_NG_RANDOM}})
		if b.clients != nil {
			chain.Rules = append(chain.Rules, join(draw, []expr.Any{lookUpInto(set.Name, 1, 0)}))
		} else {
			chain.Rules = append(chain.Rules, join(draw, []expr.Any{lookUpInto(set.Name, 1, 3)}, translateTo(f)))
		}
	}
	p.Chains = append(p.Chains, chain)
}

// set is the map of a chain's slots: to an address and a port or, with affinity, to a chain. Each chain has its own,
// because the kernel looks at a whole map for every rule that uses it.
func (b balancer) set(f ipFamily) nft.Set {
	s := nft.Set{Name: "slots" + f.suffix + "_" + b.chain, Key: nftables.TypeMark, IsMap: true}
	if b.clients != nil {
		s.Name, s.Value = "keepers"+f.suffix+"_"+b.chain, nftables.TypeVerdict
	} else {
		s.Value = nftables.MustConcatSetType(f.addressType(), nftables.TypeInetService)
	}
	return s
}

func (b balancer) slot(set string, i uint32, to netip.AddrPort) nft.Element {
	if b.clients != nil {
		return nft.Element{Set: set, Key: number(i), Goto: b.keeper(to)}
	}
	return nft.Element{Set: set, Key: number(i), Value: socketValue(to)}
}

// keeper is the name of the chain that sends clients to a backend and remembers them.
func (b balancer) keeper(to netip.AddrPort) string { return b.chain + "_" + nameOf(to.Addr()) }

// keep has two rules: remembering fails if there are too many clients.
func (b balancer) keep(to netip.AddrPort) nft.Chain {
	f := familyOfAddr(to.Addr())
	translate := join([]expr.Any{
		&expr.Immediate{Register: register3, Data: to.Addr().AsSlice()},
		&expr.Immediate{Register: register3 + f.words(), Data: binaryutil.BigEndian.PutUint16(to.Port())},
	}, translateTo(f))
	remember := []expr.Any{
		f.loadSource(1),
		&expr.Dynset{SrcRegKey: 1, SetName: b.clients(to.Addr()).Name, Operation: unix.NFT_DYNSET_OP_UPDATE},
	}
	return nft.Chain{Name: b.keeper(to), Rules: [][]expr.Any{join(f.is(), remember, translate), join(f.is(), translate)}}
}

// translateTo sends the connection to the address and port in the third register.
func translateTo(f ipFamily) []expr.Any {
	return []expr.Any{&expr.NAT{
		Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: 3, RegProtoMin: register3 + f.words(), Specified: true,
	}}
}

func socketValue(to netip.AddrPort) string {
	return string(to.Addr().AsSlice()) + string([]byte{byte(to.Port() >> 8), byte(to.Port()), 0, 0})
}

// nameOf is an address as part of a name.
func nameOf(a netip.Addr) string { return strings.ReplaceAll(a.String(), ":", "-") }

// usable are the addresses of backends that take new connections.
func usable(backends []Backend, port uint16) []netip.AddrPort {
	var list []netip.AddrPort
	for _, b := range backends {
		for _, addr := range b.Addresses {
			if b.Weight > 0 {
				list = append(list, netip.AddrPortFrom(addr, port))
			}
		}
	}
	return list
}

// slots are the nearest usable backends of each family, each as often as its weight says.
func slots(backends []Backend, port uint16) []netip.AddrPort {
	var list []netip.AddrPort
	for _, f := range families {
		var near []share
		distance := 0
		for _, b := range backends {
			i := slices.IndexFunc(b.Addresses, func(a netip.Addr) bool { return familyOfAddr(a) == f })
			switch {
			case i < 0 || b.Weight == 0 || len(near) > 0 && b.Distance > distance:
				continue
			case len(near) > 0 && b.Distance < distance:
				near = near[:0]
			}
			near, distance = append(near, share{netip.AddrPortFrom(b.Addresses[i], port), uint64(b.Weight)}), b.Distance
		}
		list = append(list, weighted(near)...)
	}
	return list
}

// share is an address and its weight.
type share struct {
	to     netip.AddrPort
	weight uint64
}

// minSlots and slotsEach limit how finely weights are told apart: the more backends there are, the more slots they need for
// the same error. maxSlots bounds the size of a map in the kernel.
const (
	minSlots  = 256
	slotsEach = 16
	maxSlots  = 4096
)

// weighted lists the addresses as often as their weights say. If that is too often, it rounds the slots of the first one,
// of the first two, and so on, so that together those with equal weights are at most one slot away from their share. Each
// one gets at least one slot.
func weighted(shares []share) []netip.AddrPort {
	if len(shares) == 0 {
		return nil
	}
	total, divisor := uint64(0), uint64(0)
	for _, s := range shares {
		total += s.weight
		divisor = gcd(s.weight, divisor)
	}
	slots := min(total/divisor, uint64(min(max(minSlots, slotsEach*len(shares)), max(maxSlots, len(shares)))))
	byWeight := slices.Clone(shares)
	slices.SortStableFunc(byWeight, func(a, b share) int { return cmp.Compare(a.weight, b.weight) })
	var list []netip.AddrPort
	sum := uint64(0)
	for _, s := range byWeight {
		sum += s.weight
		end := (sum*slots + total/2) / total
		list = append(list, slices.Repeat([]netip.AddrPort{s.to}, max(int(end)-len(list), 1))...)
	}
	return list
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// publication is a port of the machine and its backends.
type publication struct {
	key      portKey
	backends []netip.AddrPort
}

// chain is the name of the port's chain; those of ports of one address name that, too.
func (k portKey) chain() string {
	name := fmt.Sprintf("%s_%d", k.protocol, k.number)
	if k.addr.IsValid() {
		name += "_" + nameOf(k.addr)
	}
	return name
}

// element leads from the port to a chain.
func (k portKey) element(chain string) nft.Element {
	if !k.addr.IsValid() {
		return nft.Element{Set: setPublished, Key: portElement(k), Goto: chain}
	}
	return nft.Element{Set: setBound + familyOfAddr(k.addr).suffix, Key: string(k.addr.AsSlice()) + portElement(k), Goto: chain}
}

func (p publication) part() *nft.Part {
	part := &nft.Part{Elements: []nft.Element{p.key.element(p.key.chain())}}
	balancer{chain: p.key.chain(), slots: p.backends}.describe(part)
	return part
}
