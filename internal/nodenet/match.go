package nodenet

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The kernel's registers: 1 to 4 have 16 bytes, and from 8 on the same memory is counted in 4 bytes.
const (
	register1 = 8 // where the first register of 16 bytes begins
	register3 = 16
)

// ipFamily is what rules need to know about IPv4 or IPv6.
type ipFamily struct {
	proto     byte
	suffix    string // of the names of sets
	source    uint32 // offset of the source address in the header
	size      uint32 // of an address
	loopback  netip.Prefix
	linkLocal netip.Prefix
	multicast netip.Prefix
	icmp      byte
	redirect  byte // ICMP type
}

var (
	ipv4 = ipFamily{
		proto: unix.NFPROTO_IPV4, suffix: "4", source: 12, size: 4, icmp: unix.IPPROTO_ICMP, redirect: 5,
		loopback: netip.MustParsePrefix("127.0.0.0/8"), linkLocal: netip.MustParsePrefix("169.254.0.0/16"),
		multicast: netip.MustParsePrefix("224.0.0.0/4"),
	}
	ipv6 = ipFamily{
		proto: unix.NFPROTO_IPV6, suffix: "6", source: 8, size: 16, icmp: unix.IPPROTO_ICMPV6, redirect: 137,
		loopback: netip.MustParsePrefix("::1/128"), linkLocal: netip.MustParsePrefix("fe80::/10"),
		multicast: netip.MustParsePrefix("ff00::/8"),
	}
	families = []ipFamily{ipv4, ipv6}
)

func familyOfAddr(a netip.Addr) ipFamily {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

func (f ipFamily) addressType() nftables.SetDatatype {
	if f == ipv6 {
		return nftables.TypeIP6Addr
	}
	return nftables.TypeIPAddr
}

// words is the number of registers of 4 bytes that an address takes.
func (f ipFamily) words() uint32 { return f.size / 4 }

// join makes one rule of several conditions and statements.
func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// is matches packets of the family.
func (f ipFamily) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f.proto}},
	}
}

// loadSource and loadDestination put an address into registers.
func (f ipFamily) loadSource(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.source, Len: f.size}
}

func (f ipFamily) loadDestination(register uint32) expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.source + f.size, Len: f.size}
}

// from and to match packets of the family by their addresses.
func (f ipFamily) from(p netip.Prefix) []expr.Any {
	return join(f.is(), []expr.Any{f.loadSource(1)}, f.within(p, expr.CmpOpEq))
}

func (f ipFamily) notFrom(p netip.Prefix) []expr.Any {
	return join(f.is(), []expr.Any{f.loadSource(1)}, f.within(p, expr.CmpOpNeq))
}

func (f ipFamily) to(p netip.Prefix) []expr.Any {
	return join(f.is(), []expr.Any{f.loadDestination(1)}, f.within(p, expr.CmpOpEq))
}

// notAskedFor matches connections whose first packet had another destination before translation.
func (f ipFamily) notAskedFor(p netip.Prefix) []expr.Any {
	return join([]expr.Any{&expr.Ct{Key: expr.CtKeyDST, Register: 1}}, f.within(p, expr.CmpOpNeq))
}

// askedFor matches connections whose first packet had this destination before translation.
func (f ipFamily) askedFor(p netip.Prefix) []expr.Any {
	return join(f.is(), []expr.Any{&expr.Ct{Key: expr.CtKeyDST, Register: 1}}, f.within(p, expr.CmpOpEq))
}

func (f ipFamily) within(p netip.Prefix, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.size, Mask: netOf(p).Mask, Xor: make([]byte, f.size)},
		&expr.Cmp{Op: op, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// fromNode matches packets from a node itself: every node has a subnet of the same size, and its bridge has the first
// address of it.
func (f ipFamily) fromNode(own netip.Prefix) []expr.Any {
	mask := netOf(own).Mask
	for i := range mask {
		mask[i] = ^mask[i]
	}
	host := make([]byte, f.size)
	host[f.size-1] = gateway
	return join(f.is(), []expr.Any{
		f.loadSource(1),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: f.size, Mask: mask, Xor: make([]byte, f.size)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: host},
	})
}

// loadPort puts protocol and destination port into two registers.
func loadPort(register uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Payload{DestRegister: register + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

func protocolIs(protocol byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
	}
}

// portIs matches TCP or UDP to a port.
func portIs(protocol byte, port uint16) []expr.Any {
	return join(protocolIs(protocol), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	})
}

// icmpTypeIs matches a kind of ICMP message.
func (f ipFamily) icmpTypeIs(kind byte) []expr.Any {
	return join(f.is(), protocolIs(f.icmp), []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{kind}},
	})
}

// lookUp continues if the registers' value is in the set.
func lookUp(set string, register uint32) expr.Any {
	return &expr.Lookup{SourceRegister: register, SetName: set}
}

// lookUpInto continues with the map's value in another register. Register 0 takes a verdict.
func lookUpInto(set string, register, into uint32) expr.Any {
	return &expr.Lookup{SourceRegister: register, SetName: set, DestRegister: into, IsDestRegSet: true}
}

// comesIn and goesOut match the name of an interface.
func comesIn(name string) []expr.Any  { return nameIs(expr.MetaKeyIIFNAME, name, expr.CmpOpEq) }
func goesOut(name string) []expr.Any  { return nameIs(expr.MetaKeyOIFNAME, name, expr.CmpOpEq) }
func notOutBy(name string) []expr.Any { return nameIs(expr.MetaKeyOIFNAME, name, expr.CmpOpNeq) }

func nameIs(key expr.MetaKey, name string, op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: interfaceName(name)}}
}

// comesInLike and goesOutLike match the beginning of an interface's name.
func comesInLike(prefix string) []expr.Any { return nameBegins(expr.MetaKeyIIFNAME, prefix) }
func goesOutLike(prefix string) []expr.Any { return nameBegins(expr.MetaKeyOIFNAME, prefix) }

func nameBegins(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(prefix)}}
}

// nameDiffers matches names that begin otherwise.
func nameDiffers(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte(prefix)}}
}

func interfaceName(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// local matches packets to an address of the machine.
func local() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
}

// Bits of a connection's state and status.
const (
	stateEstablished = 2
	stateRelated     = 4
	dnatStatus       = 1 << 5
)

// established matches packets of known connections, and errors about them.
func established() []expr.Any { return connection(expr.CtKeySTATE, stateEstablished|stateRelated) }

// translated matches connections whose destination was translated.
func translated() []expr.Any { return connection(expr.CtKeySTATUS, dnatStatus) }

func connection(key expr.CtKey, bits uint32) []expr.Any {
	zero := make([]byte, 4)
	return []expr.Any{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

// refuse answers at once that nothing listens there.
func refuse() [][]expr.Any { return refuseWith(unix.NFT_REJECT_ICMPX_PORT_UNREACH) }

// refuseWith resets TCP connections, and answers everything else with a code of ICMP.
func refuseWith(code uint8) [][]expr.Any {
	return [][]expr.Any{
		join(protocolIs(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: code}},
	}
}

// The statements that end a rule.
var (
	accept     = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	drop       = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	leave      = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	masquerade = []expr.Any{&expr.Masq{}}
)

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}
