package nodenet

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// balancer is a chain that chooses one of several backends for a new connection.
type balancer struct {
	id    uint32 // of its backends in the maps
	chain string
	slots []netip.AddrPort // of both families; a backend may have several
}

// part has a rule for each family: draw a slot, look its backend up, translate. Without backends of a family,
// connections of that family pass untranslated.
func (b balancer) part() *nft.Part {
	chain := nft.Chain{Name: b.chain}
	p := &nft.Part{}
	for _, f := range families {
		count := uint32(0)
		for _, to := range b.slots {
			if familyOfAddr(to.Addr()) != f {
				continue
			}
			p.Elements = append(p.Elements, nft.Element{Set: setBackends + f.suffix, Key: number(b.id) + number(count), Value: socketValue(to)})
			count++
		}
		if count > 0 {
			chain.Rules = append(chain.Rules, join(f.is(), b.draw(f, count), translateTo(f)))
		}
	}
	p.Chains = []nft.Chain{chain}
	return p
}

// draw puts a backend into the third register.
func (b balancer) draw(f ipFamily, count uint32) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: register1, Data: binaryutil.NativeEndian.PutUint32(b.id)},
		&expr.Numgen{Register: register1 + 1, Modulus: count, Type: unix.NFT_NG_RANDOM},
		lookUpInto(setBackends+f.suffix, 1, 3),
	}
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

// publication is a port of the machine and its backends.
type publication struct {
	key      portKey
	backends []backend
}

// chain is the name of the port's chain; those of ports of one address name that, too.
func (k portKey) chain() string {
	name := fmt.Sprintf("%s_%d", k.protocol, k.number)
	if k.addr.IsValid() {
		name += "_" + strings.ReplaceAll(k.addr.String(), ":", "-")
	}
	return name
}

// element leads to the port's chain.
func (k portKey) element() nft.Element {
	if !k.addr.IsValid() {
		return nft.Element{Set: setPublished, Key: portElement(k), Goto: k.chain()}
	}
	return nft.Element{Set: setBound + familyOfAddr(k.addr).suffix, Key: string(k.addr.AsSlice()) + portElement(k), Goto: k.chain()}
}

func (p publication) part(id uint32) *nft.Part {
	b := balancer{id: id, chain: p.key.chain()}
	for _, to := range p.backends {
		for _, addr := range []netip.Addr{to.v4, to.v6} {
			if addr.IsValid() {
				b.slots = append(b.slots, netip.AddrPortFrom(addr, to.port))
			}
		}
	}
	part := b.part()
	part.Elements = append(part.Elements, p.key.element())
	return part
}

// backend is an endpoint's end of a published port.
type backend struct {
	v4, v6 netip.Addr // v6 is not valid without IPv6
	port   uint16
}

func newBackend(e allocated, s Subnets, port uint16) backend {
	b := backend{port: port}
	for _, addr := range e.addresses(s) {
		if addr.Is4() {
			b.v4 = addr
		} else {
			b.v6 = addr
		}
	}
	return b
}
