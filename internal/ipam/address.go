package ipam

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
)

// ErrNoAddress says that a range has no free address left.
var ErrNoAddress = errors.New("no free address is left")

// maxAddresses bounds how much of a large IPv6 range is used.
const maxAddresses = 1 << 32

// Addresses is how many services get an address out of a range. The first and the last address of a range are not used,
// because some systems treat them as the network's own.
func Addresses(all netip.Prefix) uint64 {
	bits := all.Addr().BitLen() - all.Bits()
	if !all.IsValid() || bits < 2 {
		return 0
	}
	return min(uint64(1)<<min(bits, 40), maxAddresses) - 2
}

// Address allocates an address of a range for a name. The name decides where the search begins: while few addresses are
// taken, a name always gets the same address, and a freed address is seldom given to another name.
func Address(all netip.Prefix, name string, taken func(netip.Addr) bool) (netip.Addr, error) {
	count := Addresses(all)
	if count == 0 {
		return netip.Addr{}, fmt.Errorf("range %v: %w", all, ErrNoAddress)
	}
	hash := fnv.New64a()
	hash.Write([]byte(name))
	start := hash.Sum64() % count
	for i := range count {
		if a := at(all, 1+(start+i)%count); !taken(a) {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("range %v: %w", all, ErrNoAddress)
}

// at is the address at an offset in a range.
func at(all netip.Prefix, offset uint64) netip.Addr {
	bytes := all.Masked().Addr().As16()
	low := binary.BigEndian.Uint64(bytes[8:])
	binary.BigEndian.PutUint64(bytes[8:], low+offset)
	return netip.AddrFrom16(bytes).Unmap()
}
