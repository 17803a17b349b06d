package nodenet

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// evaluate says what a rule does with a packet if it certainly matches it.
func evaluate(exprs []expr.Any, p packet, elements func(set string) []nftables.SetElement) (what expr.VerdictKind, chain string, matched bool) {
	registers := map[uint32]known{}
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			if !e.SourceRegister {
				registers[e.Register] = p.meta(e.Key)
			}
		case *expr.Ct:
			if !e.SourceRegister {
				registers[e.Register] = p.ct(e.Key)
			}
		case *expr.Payload:
			registers[e.DestRegister] = p.payload(e)
		case *expr.Bitwise:
			registers[e.DestRegister] = registers[e.SourceRegister].masked(e.Mask, e.Xor)
		case *expr.Cmp:
			if !registers[e.Register].compare(e.Op, e.Data) {
				return 0, "", false
			}
		case *expr.Lookup:
			found, sure := registers[e.SourceRegister].lookUp(elements(e.SetName))
			switch {
			case !sure || (found == nil) != e.Invert:
				return 0, "", false
			case e.IsDestRegSet:
				return verdictIn(found.Val)
			}
		case *expr.Counter, *expr.Log:
		case *expr.Verdict:
			return e.Kind, e.Chain, true
		case *expr.Reject:
			return expr.VerdictDrop, "", true
		case *expr.Target:
			switch e.Name {
			case "REJECT", "DROP":
				return expr.VerdictDrop, "", true
			}
			return 0, "", false
		default:
			return 0, "", false // an unknown condition
		}
	}
	return 0, "", false
}

// verdictIn reads the verdict of an element, which the library passes on undecoded.
func verdictIn(data []byte) (what expr.VerdictKind, chain string, is bool) {
	attrs, err := mdnetlink.NewAttributeDecoder(data)
	if err != nil {
		return 0, "", false
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		switch attrs.Type() {
		case unix.NFTA_VERDICT_CODE:
			what, is = expr.VerdictKind(int32(attrs.Uint32())), true
		case unix.NFTA_VERDICT_CHAIN:
			chain = attrs.String()
		}
	}
	return what, chain, is && attrs.Err() == nil
}

// known is what is known of a value: all bits, those of the mask, or that it is not a
// certain value.
type known struct {
	value, mask []byte
	not         []byte // a value that it certainly is not
}

func exactly(value []byte) known {
	return known{value: value, mask: bytes.Repeat([]byte{0xff}, len(value))}
}

func (k known) masked(mask, xor []byte) known {
	if len(k.value) != len(mask) {
		return known{}
	}
	out := known{value: make([]byte, len(mask)), mask: make([]byte, len(mask))}
	for i := range mask {
		out.value[i] = k.value[i] & mask[i]
		// Masked-out bits are known to be zero.
		out.mask[i] = k.mask[i] | ^mask[i]
		if i < len(xor) {
			out.value[i] ^= xor[i]
		}
	}
	return out
}

// compare reports whether the comparison certainly holds.
func (k known) compare(op expr.CmpOp, data []byte) bool {
	if k.not != nil {
		// Interface names: all that is known is that it is not the bridge's.
		return op == expr.CmpOpNeq && isName(k.not, data)
	}
	if k.value == nil || len(data) > len(k.value) {
		return false
	}
	equal, differ := true, false
	for i, want := range data {
		if k.mask[i] != 0xff {
			equal = false
		}
		if (k.value[i]^want)&k.mask[i] != 0 {
			equal, differ = false, true
		}
	}
	return op == expr.CmpOpEq && equal || op == expr.CmpOpNeq && differ
}

// lookUp finds the element with the value, nil if there is none. sure is whether that is
// certain.
func (k known) lookUp(elements []nftables.SetElement) (found *nftables.SetElement, sure bool) {
	if k.value == nil || k.not != nil || bytes.Count(k.mask, []byte{0xff}) != len(k.mask) {
		return nil, false
	}
	intervals := false
	var below *nftables.SetElement // the last one that is not above the value
	for i, e := range elements {
		if len(e.Key) != len(k.value) || e.KeyEnd != nil {
			return nil, false
		}
		intervals = intervals || e.IntervalEnd
		if bytes.Compare(e.Key, k.value) <= 0 && (below == nil || bytes.Compare(e.Key, below.Key) > 0) {
			below = &elements[i]
		}
	}
	if below == nil || below.IntervalEnd || !intervals && !bytes.Equal(below.Key, k.value) {
		return nil, true
	}
	return below, true
}

// isName reports whether data is a comparison with this name.
func isName(name, data []byte) bool {
	return bytes.Equal(bytes.TrimRight(name, "\x00"), bytes.TrimRight(data, "\x00"))
}

func (p packet) meta(key expr.MetaKey) known {
	switch key {
	case expr.MetaKeyIIFNAME:
		return p.name(p.in, p.out)
	case expr.MetaKeyOIFNAME:
		return p.name(p.out, p.in)
	case expr.MetaKeyIIF:
		return p.number(p.in)
	case expr.MetaKeyOIF:
		return p.number(p.out)
	case expr.MetaKeyNFPROTO:
		return exactly([]byte{byte(p.family)})
	case expr.MetaKeyL4PROTO:
		return p.transport()
	default:
		return known{}
	}
}

// name is that of an interface, or known only not to be the bridge's.
func (p packet) name(name, bridge string) known {
	data := make([]byte, unix.IFNAMSIZ)
	if name == "" {
		copy(data, bridge)
		return known{not: data}
	}
	copy(data, name)
	return exactly(data)
}

// number is the index of an interface, or known only not to be the bridge's.
func (p packet) number(name string) known {
	data := binaryutil.NativeEndian.PutUint32(uint32(p.index))
	switch {
	case p.index == 0:
		return known{}
	case name == "":
		return known{not: data}
	default:
		return exactly(data)
	}
}

func (p packet) transport() known {
	if p.protocol == 0 {
		return known{}
	}
	return exactly([]byte{p.protocol})
}

// stateNew is the bit of the first packet of a connection.
const stateNew = 8

func (p packet) ct(key expr.CtKey) known {
	if key == expr.CtKeySTATE {
		return exactly(binaryutil.NativeEndian.PutUint32(stateNew))
	}
	return known{}
}

func (p packet) payload(e *expr.Payload) known {
	switch {
	case e.Base == expr.PayloadBaseTransportHeader && e.Offset == 2 && e.Len == 2 && p.protocol != 0:
		return exactly(binaryutil.BigEndian.PutUint16(p.port))
	case e.Base != expr.PayloadBaseNetworkHeader:
		return known{}
	}
	sourceAt, size, protocolAt := uint32(12), uint32(4), uint32(9)
	if p.family == nftables.TableFamilyIPv6 {
		sourceAt, size, protocolAt = 8, 16, 6
	}
	if e.Offset == protocolAt && e.Len == 1 {
		return p.transport()
	}
	prefix := p.source
	if e.Offset == sourceAt+size {
		prefix = p.destination
	} else if e.Offset != sourceAt {
		return known{}
	}
	if e.Len > size || !prefix.IsValid() {
		return known{}
	}
	return known{value: prefix.Masked().Addr().AsSlice()[:e.Len], mask: maskOf(prefix)[:e.Len]}
}

func maskOf(p netip.Prefix) []byte { return netOf(p).Mask }
