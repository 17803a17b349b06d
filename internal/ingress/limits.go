package ingress

import (
	"net/netip"
	"sync"
)

// limits bound how many clients may be connected, in all and from one address, so that one attacker cannot use up what
// all clients share. Where there are too many, connections make room that have no request.
type limits struct {
	most, mostEach int

	mu    sync.Mutex
	all   map[*client]netip.Addr
	each  map[netip.Addr]map[*client]struct{}
	ended bool
}

func newLimits(most int) *limits {
	return &limits{most: most, mostEach: max(most/4, 1), all: map[*client]netip.Addr{}, each: map[netip.Addr]map[*client]struct{}{}}
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
func (l *limits) enter(c *client) bool {
	from := group(c.peer.Addr())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	if !c.trusted && len(l.each[from]) >= l.mostEach && !evict(l, l.each[from]) {
		return false
	}
	if len(l.all) >= l.most && !evict(l, l.all) {
		return false
	}
	l.all[c] = from
	if l.each[from] == nil {
		l.each[from] = map[*client]struct{}{}
	}
	l.each[from][c] = struct{}{}
	return true
}

// mostLooked is how many connections are looked at for one that can make room.
const mostLooked = 64

// evict closes one of the connections without a request, whichever the map has first, which is random. The caller holds mu.
func evict[V any](l *limits, among map[*client]V) bool {
	looked := 0
	for c := range among {
		if !c.busy.Load() {
			l.remove(c)
			_ = c.Conn.Close() // its goroutine notices
			return true
		}
		if looked++; looked == mostLooked {
			break
		}
	}
	return false
}

func (l *limits) remove(c *client) {
	from, known := l.all[c]
	if !known {
		return
	}
	delete(l.all, c)
	delete(l.each[from], c)
	if len(l.each[from]) == 0 {
		delete(l.each, from)
	}
}

func (l *limits) leave(c *client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
}

// crowded reports whether there are so many connections that those which do nothing should make room.
func (l *limits) crowded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all) > l.most/2
}

// closeAll closes all connections, and those that come later.
func (l *limits) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for c := range l.all {
		_ = c.Conn.Close() // its goroutine notices
	}
}
