package mesh

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// lookUpEvery is how often the names of servers are looked up, and lookUpRetry how soon after a failure.
	lookUpEvery = 10 * time.Minute
	lookUpRetry = 5 * time.Second
	// lookUpTimeout limits one lookup, so that a dead name server does not delay the next attempt for long.
	lookUpTimeout = 10 * time.Second
)

// stunServers knows the addresses of the servers that tell this node its public address. Servers may have names, and
// names may have addresses of both families: all of them are asked, because each family has its own public address.
type stunServers struct {
	found func([]netip.AddrPort)
	wake  chan struct{}
	// lookUp is that of net.DefaultResolver, but for tests.
	lookUp func(ctx context.Context, network, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	names []string // such as 192.0.2.1:7443 or cloud.example:7443
}

func newSTUNServers(found func([]netip.AddrPort)) *stunServers {
	return &stunServers{found: found, wake: make(chan struct{}, 1), lookUp: net.DefaultResolver.LookupNetIP}
}

// set replaces the servers. It does not block.
func (s *stunServers) set(names []string) {
	s.mu.Lock()
	s.names = names
	s.mu.Unlock()
	s.lookUpAgain()
}

func (s *stunServers) lookUpAgain() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run looks names up until ctx ends.
func (s *stunServers) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wake:
		}
		if s.lookUpAll(ctx) {
			timer.Reset(lookUpEvery)
		} else {
			timer.Reset(lookUpRetry)
		}
	}
}

// lookUpAll reports whether every name was found.
func (s *stunServers) lookUpAll(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	s.mu.Lock()
	names := s.names
	s.mu.Unlock()
	var all []netip.AddrPort
	complete := true
	for _, name := range names {
		some, err := s.addressesOf(ctx, name)
		complete = complete && err == nil
		all = append(all, some...)
	}
	if complete || len(all) > 0 {
		s.found(all)
	}
	return complete
}

// addressesOf returns the addresses of a server, in a fixed order.
func (s *stunServers) addressesOf(ctx context.Context, name string) (list []netip.AddrPort, err error) {
	if a, err := netip.ParseAddrPort(name); err == nil {
		return []netip.AddrPort{a}, nil
	}
	host, text, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, err
	}
	found, err := s.lookUp(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	for _, a := range found {
		list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(port)))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list), nil
}
