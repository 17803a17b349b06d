package server

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// lookupPatience is how long it is waited for names to be resolved.
const lookupPatience = 2 * time.Second

// places is where names lead, as far as that is known here. They are resolved before a
// transaction is built, which waits for nothing.
type places map[string][]netip.Addr

// placesOf resolves the names among addresses of the form host:port.
func (s *Membership) placesOf(ctx context.Context, addresses ...string) places {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	found := places{}
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if _, numeric := hostAddress(address); err != nil || numeric {
			continue
		}
		found[address], _ = s.Lookup(ctx, "ip", host) // one that leads nowhere now is in nobody's way
	}
	return found
}

// at is where host:port leads.
func (p places) at(address string) []netip.Addr {
	if a, numeric := hostAddress(address); numeric {
		return []netip.Addr{a}
	}
	return p[address]
}

// in returns one of the addresses of host:port that a range contains.
func (p places) in(all netip.Prefix, address string) (netip.Addr, bool) {
	for _, a := range p.at(address) {
		if a = a.Unmap().WithZone(""); all.Contains(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// hostAddress returns the IP address in host:port, unless the host is a name. A name can
// resolve to another address later; placesOf resolves names.
func hostAddress(address string) (netip.Addr, bool) {
	host, _, _ := net.SplitHostPort(address)
	a, err := netip.ParseAddr(host)
	return a.Unmap().WithZone(""), err == nil
}
