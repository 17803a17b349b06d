package membership

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// lookupPatience is how long it is waited for names to be resolved.
const lookupPatience = 2 * time.Second

// Hosts is where names lead, as far as that is known here. They are resolved before a
// transaction is built, which waits for nothing.
type Hosts map[string][]netip.Addr

// ResolveHosts resolves the names among addresses of the form host:port.
func (s *Membership) ResolveHosts(ctx context.Context, addresses ...string) Hosts {
	ctx, cancel := context.WithTimeout(ctx, lookupPatience)
	defer cancel()
	found := Hosts{}
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
func (p Hosts) at(address string) []netip.Addr {
	if a, numeric := hostAddress(address); numeric {
		return []netip.Addr{a}
	}
	return p[address]
}

// In returns one of the addresses of host:port that a range contains.
func (p Hosts) In(all netip.Prefix, address string) (netip.Addr, bool) {
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
