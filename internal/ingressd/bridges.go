package ingressd

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// dnsPort is where the resolvers of nodes answer, at the addresses of their bridges.
	dnsPort = 53
	// bridgePrefix begins the names of these bridges. Package nodenet makes them; it is too large for this process.
	bridgePrefix = "cl-"
	// bridgesEvery is how often the addresses are read.
	bridgesEvery = time.Second
)

// bridges know the addresses of the bridges that lead to replicas.
type bridges struct {
	mu    sync.Mutex
	known map[netip.Addr]bool
	read  time.Time
}

// have says whether an address is one of a bridge.
func (b *bridges) have(a netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.read) > bridgesEvery {
		b.known, b.read = bridgeAddresses(), time.Now()
	}
	return b.known[a.WithZone("")]
}

func bridgeAddresses() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	links, _ := net.Interfaces() // if they cannot be read, the kernel still leads queries to a resolver that runs
	for _, link := range links {
		if !strings.HasPrefix(link.Name, bridgePrefix) {
			continue
		}
		addresses, _ := link.Addrs()
		for _, a := range addresses {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					all[ip.Unmap()] = true
				}
			}
		}
	}
	return all
}
