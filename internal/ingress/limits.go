package ingress

import (
	"net"
	"net/netip"
	"sync"
)

// limits bound how many clients may be connected, in all and from one address, so that one attacker cannot use up what
// all clients share.
type limits struct {
	most, mostEach int

	mu    sync.Mutex
	conns map[net.Conn]netip.Addr
	each  map[netip.Addr]int
	ended bool
}

func newLimits(most int) *limits {
	return &limits{most: most, mostEach: max(most/4, 1), conns: map[net.Conn]netip.Addr{}, each: map[netip.Addr]int{}}
}

// group is what counts as one client: an IPv4 address, or an IPv6 network of the size that one customer gets.
func group(a netip.Addr) netip.Addr {
	if a = a.Unmap(); a.Is4() {
		return a
	}
	p, err := a.WithZone("").Prefix(64)
	if err != nil {
		return a
	}
	return p.Addr()
}

// enter reports whether there is room for another connection. Load balancers may have as many as they need.
func (l *limits) enter(conn net.Conn, from netip.Addr, trusted bool) bool {
	from = group(from)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || len(l.conns) >= l.most || !trusted && l.each[from] >= l.mostEach {
		return false
	}
	l.conns[conn] = from
	l.each[from]++
	return true
}

func (l *limits) leave(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	from, known := l.conns[conn]
	if !known {
		return
	}
	delete(l.conns, conn)
	if l.each[from]--; l.each[from] <= 0 {
		delete(l.each, from)
	}
}

// crowded reports whether there are so many connections that those which do nothing should make room.
func (l *limits) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns) > l.most/2
}

// closeAll closes all connections, and those that come later.
func (l *limits) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for conn := range l.conns {
		_ = conn.Close()
	}
}
