package resolver

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/miekg/dns"
)

const (
	reverse4 = ".in-addr.arpa."
	reverse6 = ".ip6.arpa."
)

// reversePrefix is the range that a reverse name stands for. A complete name stands for one address.
func reversePrefix(name string) (netip.Prefix, bool) {
	if rest, ok := strings.CutSuffix(name, reverse4); ok {
		return reversed(rest, 4, 10, 8)
	}
	if rest, ok := strings.CutSuffix(name, reverse6); ok {
		return reversed(rest, 32, 16, 4)
	}
	return netip.Prefix{}, false
}

// reversed reads an address whose labels are numbers of a few bits each, the last ones first.
func reversed(name string, labels, base, bits int) (netip.Prefix, bool) {
	parts := strings.Split(name, ".")
	if len(parts) > labels {
		return netip.Prefix{}, false
	}
	data := make([]byte, labels*bits/8)
	slices.Reverse(parts)
	for i, part := range parts {
		n, err := strconv.ParseUint(part, base, bits)
		if err != nil || len(part) > 1 && (bits == 4 || part[0] == '0') || part[0] == '+' {
			return netip.Prefix{}, false
		}
		if bits == 8 {
			data[i] = byte(n)
		} else {
			data[i/2] |= byte(n) << (4 - 4*(i%2))
		}
	}
	address, _ := netip.AddrFromSlice(data)
	return netip.PrefixFrom(address, len(parts)*bits), true
}

// reverseApex is the name of the smallest range of whole labels that contains the name and lies in the range.
func reverseApex(name string, within netip.Prefix) string {
	bits, labels := 8, 2 // those of in-addr.arpa and ip6.arpa
	if within.Addr().Is6() {
		bits = 4
	}
	labels += (within.Bits() + bits - 1) / bits
	for parts := strings.Count(name, "."); parts > labels; parts-- {
		_, name, _ = strings.Cut(name, ".")
	}
	return name
}

// lookupAddress answers a question about a reverse name below one of the cluster's ranges.
func (z *zone) lookupAddress(name string, asked netip.Prefix, within netip.Prefix, qtype uint16, v view) reply {
	z.mu.RLock()
	defer z.mu.RUnlock()
	if !z.ready {
		return reply{rcode: dns.RcodeServerFailure}
	}
	apex := reverseApex(name, within)
	if !asked.IsSingleIP() { // names of addresses may be below it
		return reply{apex: apex, serial: z.serial, answer: z.reverseApexRecords(name, apex, qtype)}
	}
	var names []string
	for _, o := range z.owners[asked.Addr()] {
		if o.visibleTo(v) {
			names = append(names, o.name())
		}
	}
	if len(names) == 0 {
		return reply{rcode: dns.RcodeNameError, apex: apex, serial: z.serial}
	}
	out := reply{apex: apex, serial: z.serial}
	if qtype == dns.TypePTR || qtype == dns.TypeANY {
		slices.Sort(names)
		for _, target := range slices.Compact(names) {
			out.answer = append(out.answer, &dns.PTR{Hdr: header(name, dns.TypePTR, endpointTTL), Ptr: target})
		}
	}
	return out
}

func (z *zone) reverseApexRecords(name, apex string, qtype uint16) []dns.RR {
	if name != apex {
		return nil
	}
	return z.apexRecords(name, qtype, nil)
}
