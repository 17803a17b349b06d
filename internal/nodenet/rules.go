package nodenet

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// publication is a port of the machine and its backends.
type publication struct {
	key      portKey
	backends []backend
}

func comparePublications(a, b publication) int {
	return cmp.Or(cmp.Compare(a.key.protocol, b.key.protocol), cmp.Compare(a.key.number, b.key.number))
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

// ruleset is the content of our table:
//
//	guard        the bridge must not reach 127.0.0.0/8 of the machine
//	prerouting   packets to an address of the machine: look the port up
//	output       the same for the machine itself, but not for ::1
//	postrouting  masquerade what leaves the node, what came from 127.0.0.1 and
//	             what returns to its sender
//	published    map of protocol and port to the chain of that port
//	tcp_8080     one backend, or a random one of several
//
// Only the first packet of a connection passes here.
type ruleset struct {
	table, bridge string
	subnets       Subnets
	published     []publication
}

// put replaces the table in one transaction.
func (r ruleset) put(c *nftables.Conn) error {
	t := &nftables.Table{Name: r.table, Family: nftables.TableFamilyINet}
	c.AddTable(t) // so that there is one to delete
	c.DelTable(t)
	c.AddTable(t)
	w := &writer{conn: c, table: t, ruleset: r}
	var elements []nftables.SetElement
	for _, p := range r.published {
		chain, err := w.publish(p)
		if err != nil {
			return err
		}
		elements = append(elements, nftables.SetElement{
			Key:         portElement(p.key),
			VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain},
		})
	}
	published := &nftables.Set{
		Table: t, Name: "published", IsMap: true, Concatenation: true,
		KeyType:  nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		DataType: nftables.TypeVerdict,
	}
	if err := c.AddSet(published, elements); err != nil {
		return fmt.Errorf("describe the published ports: %w", err)
	}
	w.guard()
	w.destinations(published)
	w.sources()
	return nil
}

// portElement is the key of a port: each part fills a register.
func portElement(k portKey) []byte {
	return []byte{k.number4(), 0, 0, 0, byte(k.number >> 8), byte(k.number), 0, 0}
}

// number4 is the number of the protocol.
func (k portKey) number4() byte {
	if k.protocol == "udp" {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// writer adds chains and rules to a transaction.
type writer struct {
	ruleset
	conn  *nftables.Conn
	table *nftables.Table
}

func (w *writer) chain(name string) *nftables.Chain {
	return w.conn.AddChain(&nftables.Chain{Table: w.table, Name: name})
}

func (w *writer) base(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
	accept := nftables.ChainPolicyAccept
	return w.conn.AddChain(&nftables.Chain{Table: w.table, Name: name, Type: kind, Hooknum: hook, Priority: priority, Policy: &accept})
}

func (w *writer) rule(chain *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	w.conn.AddRule(&nftables.Rule{Table: w.table, Chain: chain, Exprs: all})
}

// publish creates the chain of one port.
func (w *writer) publish(p publication) (string, error) {
	name := fmt.Sprintf("%s_%d", p.key.protocol, p.key.number)
	if len(p.backends) == 1 {
		w.translate(w.chain(name), p.backends[0])
		return name, nil
	}
	var choices []nftables.SetElement
	for i, b := range p.backends {
		one := fmt.Sprintf("%s_%d", name, i)
		w.translate(w.chain(one), b)
		choices = append(choices, nftables.SetElement{
			Key:         binaryutil.NativeEndian.PutUint32(uint32(i)),
			VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: one},
		})
	}
	chosen := &nftables.Set{
		Table: w.table, Anonymous: true, Constant: true, IsMap: true,
		KeyType: nftables.TypeInteger, DataType: nftables.TypeVerdict, KeyByteOrder: binaryutil.NativeEndian,
	}
	if err := w.conn.AddSet(chosen, choices); err != nil {
		return "", fmt.Errorf("describe who serves port %v: %w", p.key, err)
	}
	w.rule(w.chain(name), []expr.Any{
		&expr.Numgen{Register: 1, Modulus: uint32(len(p.backends)), Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SourceRegister: 1, SetName: chosen.Name, SetID: chosen.ID, DestRegister: 0, IsDestRegSet: true},
	})
	return name, nil
}

func (w *writer) translate(chain *nftables.Chain, b backend) {
	port := []byte{byte(b.port >> 8), byte(b.port)}
	for _, to := range []struct {
		addr   netip.Addr
		family byte
	}{{b.v4, unix.NFPROTO_IPV4}, {b.v6, unix.NFPROTO_IPV6}} {
		if !to.addr.IsValid() {
			continue
		}
		w.rule(chain, family(to.family), []expr.Any{
			&expr.Immediate{Register: 1, Data: to.addr.AsSlice()},
			&expr.Immediate{Register: 2, Data: port},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(to.family), RegAddrMin: 1, RegProtoMin: 2, Specified: true},
		})
	}
}

// guard keeps replicas from programs on the machine's loopback, to which the setting
// route_localnet would let them through.
func (w *writer) guard() {
	chain := w.base("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	w.rule(chain, nameIs(expr.MetaKeyIIFNAME, w.bridge, expr.CmpOpEq), family(unix.NFPROTO_IPV4),
		address(unix.NFPROTO_IPV4, false, loopback4), []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}})
}

var (
	loopback4 = netip.MustParsePrefix("127.0.0.0/8")
	loopback6 = netip.MustParsePrefix("::1/128")
)

func (w *writer) destinations(published *nftables.Set) {
	local := []expr.Any{
		&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
	lookup := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Payload{DestRegister: 9, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, // the part after the protocol
		&expr.Lookup{SourceRegister: 1, SetName: published.Name, SetID: published.ID, DestRegister: 0, IsDestRegSet: true},
	}
	in := w.base("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	w.rule(in, local, lookup)
	own := w.base("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	w.rule(own, family(unix.NFPROTO_IPV6), address(unix.NFPROTO_IPV6, false, loopback6), []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
	w.rule(own, local, lookup)
}

func (w *writer) sources() {
	chain := w.base("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	masquerade := []expr.Any{&expr.Masq{}}
	toBridge := nameIs(expr.MetaKeyOIFNAME, w.bridge, expr.CmpOpEq)
	w.rule(chain, toBridge, family(unix.NFPROTO_IPV4), address(unix.NFPROTO_IPV4, true, loopback4), masquerade)
	for _, subnet := range []netip.Prefix{w.subnets.V4, w.subnets.V6} {
		if !subnet.IsValid() {
			continue
		}
		f := byte(unix.NFPROTO_IPV4)
		if subnet.Addr().Is6() {
			f = unix.NFPROTO_IPV6
		}
		from := address(f, true, subnet)
		// A replica that reached another, or itself, by an address of the machine must get
		// the answer from there.
		w.rule(chain, toBridge, family(f), from, translated(), masquerade)
		w.rule(chain, nameIs(expr.MetaKeyOIFNAME, w.bridge, expr.CmpOpNeq), family(f), from, masquerade)
	}
}

// family matches packets of one family.
func family(f byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{f}},
	}
}

// address matches the source or the destination.
func address(f byte, source bool, p netip.Prefix) []expr.Any {
	offset, length := uint32(16), uint32(4)
	if f == unix.NFPROTO_IPV6 {
		offset, length = 24, 16
	}
	if source {
		offset -= length
	}
	mask := netOf(p).Mask
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: length, Mask: mask, Xor: make([]byte, length)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

// nameIs matches the name of an interface.
func nameIs(key expr.MetaKey, name string, op expr.CmpOp) []expr.Any {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: data}}
}

// dnatStatus is the bit of a connection whose destination was translated.
const dnatStatus = 1 << 5

// translated matches connections whose destination was translated.
func translated() []expr.Any {
	bit := binaryutil.NativeEndian.PutUint32(dnatStatus)
	zero := make([]byte, 4)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: bit, Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}
