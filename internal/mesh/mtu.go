package mesh

import (
	"net/netip"
	"time"
)

const (
	// sealing is what WireGuard adds to a packet, and overhead what the headers of UDP and IPv6 add to that.
	sealing  = 16 + 16
	overhead = sealing + 8 + 40
	// minMTU is the smallest MTU that IPv6 allows.
	minMTU = 1280
	// smallestMTU fits whole through a path of minMTU. Only IPv4 packets can be so small: those of IPv6 are sent in two
	// fragments there.
	smallestMTU = minMTU - overhead
	// mtuAgain is how often the MTU of a path is looked for again.
	mtuAgain = 10 * time.Minute
	// mtuPatience is how long a ping of full size has to be answered, and mtuTries how often it is sent.
	mtuPatience = time.Second
	mtuTries    = 2
)

// MTUFor is the MTU of the mesh on a machine whose uplink has a given MTU.
func MTUFor(uplink int) int { return max(uplink-overhead, minMTU) }

// mtuSteps are the MTUs that are tried below that of the interface: usual ones of tunnels and access lines.
var mtuSteps = []int{1420, 1412, 1400, 1380, 1340, 1300, minMTU, smallestMTU}

// mtuSearch finds the largest packet that fits through a path, by pings of that size that may not be fragmented. It is
// pure.
type mtuSearch struct {
	path    netip.AddrPort
	found   int
	at      time.Time
	trying  int // the MTU that is being tried; 0 for none
	tries   int
	number  [12]byte
	sent    time.Time
	arrived bool
}

// due returns the size of the datagram to send now, if any, and whether the search has just ended.
func (s *mtuSearch) due(now time.Time, path netip.AddrPort, largest int) (number [12]byte, size int, ended bool) {
	if path != s.path {
		*s = mtuSearch{path: path}
	}
	switch {
	case !path.IsValid():
		return number, 0, false
	case s.trying == 0 && (s.found == 0 || now.Sub(s.at) >= mtuAgain):
		s.trying, s.tries = largest, 0
	case s.trying == 0:
		return number, 0, false
	case s.arrived:
		return number, 0, s.end(now, s.trying)
	case now.Sub(s.sent) < mtuPatience:
		return number, 0, false
	case s.tries == mtuTries:
		smaller := nextMTU(s.trying)
		if smaller == 0 {
			return number, 0, s.end(now, smallestMTU)
		}
		s.trying, s.tries = smaller, 0
	}
	s.tries, s.sent, s.number, s.arrived = s.tries+1, now, newNumber(), false
	return s.number, s.trying + sealing, false
}

func nextMTU(tried int) int {
	for _, m := range mtuSteps {
		if m < tried {
			return m
		}
	}
	return 0
}

func (s *mtuSearch) end(now time.Time, found int) bool {
	changed := s.found != found
	s.found, s.at, s.trying, s.arrived = found, now, 0, false
	return changed
}

// ponged reports whether a pong answers a ping of the search.
func (s *mtuSearch) ponged(number [12]byte) bool {
	if s.trying == 0 || number != s.number {
		return false
	}
	s.arrived = true
	return true
}

// searchMTU goes on with the search for a peer's MTU.
func (m *Mesh) searchMTU(now time.Time, p *peer) {
	p.mu.Lock()
	var path netip.AddrPort
	if p.paths.best != nil {
		path = p.paths.best.address
	}
	number, size, ended := p.fit.due(now, path, m.opts.MTU)
	found, destinations := p.fit.found, p.config.Prefixes
	p.mu.Unlock()
	if size > 0 {
		if s := m.bind.socketFor(path.Addr()); s != nil {
			_ = s.sendWhole(m.sealed(p, probe{kind: probePing, number: number, size: size}), path) // too large is no answer
		}
	}
	if ended {
		m.limitPackets(destinations, found)
	}
}

// limitPackets lets the kernel make packets to a peer no larger than its path takes.
func (m *Mesh) limitPackets(destinations []netip.Prefix, mtu int) {
	for _, one := range destinations {
		limit := mtu
		if one.Addr().Is6() {
			limit = max(limit, minMTU)
		}
		if limit >= m.opts.MTU {
			limit = 0
		}
		if err := m.tun.addRoutes([]netip.Prefix{one}, limit); err != nil {
			m.log.Warn("the MTU of a peer could not be set: large packets to it are fragmented", "error", err)
		}
	}
}
