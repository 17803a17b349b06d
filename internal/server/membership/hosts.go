package membership

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// lookupTimeout bounds the resolution of all names.
const lookupTimeout = 2 * time.Second

// Hosts are the addresses of host names, by host:port. Names are resolved before a
// transaction is built, because building one must not wait.
type Hosts map[string][]netip.Addr

// ResolveHosts resolves the names among addresses of the form host:port.
func (s *Membership) ResolveHosts(ctx context.Context, addresses ...string) Hosts {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found := Hosts{}
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if _, numeric := hostAddress(address); err != nil || numeric {
			continue
		}
		found[address], _ = s.Lookup(ctx, "ip", host) // a name that does not resolve conflicts with nothing
	}
	return found
}

// of returns the addresses of host:port.
func (h Hosts) of(address string) []netip.Addr {
	if a, numeric := hostAddress(address); numeric {
		return []netip.Addr{a}
	}
	return h[address]
}

// In returns an address of host:port that is in a range.
func (h Hosts) In(all netip.Prefix, address string) (netip.Addr, bool) {
	for _, a := range h.of(address) {
		if a = a.Unmap().WithZone(""); all.Contains(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// hostAddress returns the IP address in host:port, unless the host is a name. A name can
// resolve to another address later; ResolveHosts resolves names.
func hostAddress(address string) (netip.Addr, bool) {
	host, _, _ := net.SplitHostPort(address)
	a, err := netip.ParseAddr(host)
	return a.Unmap().WithZone(""), err == nil
}
