// Package ipam allocates addresses out of the ranges of the cluster: one subnet
// of each family for a node, and one address of each family for a service.
//
// It guarantees that what it allocates lies within the range and overlaps
// nothing that is in use. A node gets the lowest free subnet. A service gets an
// address that follows from its name, so that it gets the same one again. The
// package is pure: the caller says what is in use, and makes sure that two
// callers do not choose at the same time.
package ipam

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
)

const (
	nodeBits4 = 24
	nodeBits6 = 64
	ulaBits   = 48
)

// ErrExhausted says that a range has no free subnet left.
var ErrExhausted = errors.New("no free subnet is left")

// defaultRanges4 are what a cluster may be founded with, the best one first: it
// lies apart from what home routers and container tools usually take.
var defaultRanges4 = []netip.Prefix{
	netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64}), 10),
	netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128}), 10),
	netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 192}), 10),
	netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0}), 10),
	netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16}), 12),
	netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10),
}

// DefaultRange4 is the range of IPv4 addresses of a cluster that names none,
// founded at an address and on a machine that uses others: the first that
// overlaps none of them. Where a machine uses something of all, what counts is
// that the cluster is still reached at its address.
func DefaultRange4(at netip.Addr, used []netip.Prefix) netip.Prefix {
	overlaps := func(p netip.Prefix) bool { return p.Contains(at) || slices.ContainsFunc(used, p.Overlaps) }
	for _, p := range defaultRanges4 {
		if !overlaps(p) {
			return p
		}
	}
	i := slices.IndexFunc(defaultRanges4, func(p netip.Prefix) bool { return !p.Contains(at) })
	return defaultRanges4[i] // they do not overlap each other, so that no address is in all
}

// RandomULA draws a /48 of unique local IPv6 addresses (RFC 4193), so that two
// clusters that meet one day have different ones.
func RandomULA(rand io.Reader) (netip.Prefix, error) {
	addr := [16]byte{0xfd}
	if _, err := io.ReadFull(rand, addr[1:ulaBits/8]); err != nil {
		return netip.Prefix{}, fmt.Errorf("draw an IPv6 range: %w", err)
	}
	return netip.PrefixFrom(netip.AddrFrom16(addr), ulaBits), nil
}

// NextSubnets returns the lowest IPv4 /24 and IPv6 /64 of the ranges that
// overlap nothing in use.
func NextSubnets(range4, range6 netip.Prefix, used4, used6 []netip.Prefix) (v4, v6 netip.Prefix, err error) {
	if !range4.Addr().Is4() {
		return v4, v6, fmt.Errorf("range %v is not one of IPv4", range4)
	}
	if !range6.Addr().Is6() || range6.Addr().Is4In6() {
		return v4, v6, fmt.Errorf("range %v is not one of IPv6", range6)
	}
	if v4, err = lowestFree(range4, nodeBits4, used4); err != nil {
		return netip.Prefix{}, netip.Prefix{}, err
	}
	if v6, err = lowestFree(range6, nodeBits6, used6); err != nil {
		return netip.Prefix{}, netip.Prefix{}, err
	}
	return v4, v6, nil
}

func lowestFree(all netip.Prefix, bits int, used []netip.Prefix) (netip.Prefix, error) {
	if !all.IsValid() || all.Bits() > bits {
		return netip.Prefix{}, fmt.Errorf("range %v is too small: every node needs a /%d of it", all, bits)
	}
	all = all.Masked()
	if byAddress := func(a, b netip.Prefix) int { return a.Masked().Addr().Compare(b.Masked().Addr()) }; !slices.IsSortedFunc(used, byAddress) {
		used = slices.Clone(used)
		slices.SortFunc(used, byAddress)
	}

	free := netip.PrefixFrom(all.Addr(), bits)
	for _, u := range used {
		if !u.Overlaps(free) {
			continue
		}
		// Prefixes are aligned, so what follows the larger of two that overlap
		// is the start of a subnet again.
		next := lastAddr(u.Masked())
		if u.Bits() > bits {
			next = lastAddr(free)
		}
		if next = next.Next(); !all.Contains(next) {
			return netip.Prefix{}, fmt.Errorf("range %v: %w; widen the range or remove nodes", all, ErrExhausted)
		}
		free = netip.PrefixFrom(next, bits)
	}
	return free, nil
}

// lastAddr returns the highest address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	bytes := p.Addr().AsSlice()
	for i := range bytes {
		if host := 8*(i+1) - p.Bits(); host > 0 {
			bytes[i] |= byte(1<<min(host, 8) - 1)
		}
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last
}

// Subnets is how many subnets of nodes a range has room for, or how many of them it touches if it is smaller than one.
func Subnets(all netip.Prefix) uint64 {
	bits := nodeBits6
	if all.Addr().Is4() {
		bits = nodeBits4
	}
	return 1 << max(bits-all.Bits(), 0)
}

// Replicas is how many replicas get an address of a node's subnet: not the first and last address, nor that of the
// node itself.
func Replicas(subnet netip.Prefix) uint64 {
	bits := subnet.Addr().BitLen() - subnet.Bits()
	if !subnet.IsValid() || bits < 2 {
		return 0
	}
	return uint64(1)<<min(bits, 16) - 3
}
