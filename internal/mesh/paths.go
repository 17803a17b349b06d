package mesh

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	// pingEvery is how often the path in use is pinged while there is traffic.
	pingEvery = time.Second
	// trusted is how long a path is relied on after the last ping was due. While it is uncertain, packets take it and
	// the relay: WireGuard drops duplicates.
	trusted = 600 * time.Millisecond
	// lost is how long a path may be silent before it is given up.
	lost = 5 * time.Second
	// idleAfter is how long after the last packet a peer is no longer pinged.
	idleAfter = 30 * time.Second
	// searchAgain is how often other paths are tried, once the first tries are over.
	searchAgain = 15 * time.Second
	// compareEvery is how often other paths are tried while one works.
	compareEvery = time.Minute
	// recentTrips is how many round trips say how fast the path in use is. Load delays some of them.
	recentTrips = 8
	// maxPaths bounds what one peer can make us remember.
	maxPaths = 64
)

// searchAt are the times after the begin of a search at which all addresses are pinged.
var searchAt = []time.Duration{0, 300 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second}

// nearHops is how far the first pings of a search go: far enough to open the NAT on this side, and too short to reach
// the one on the other side, which would remember them as strangers.
const nearHops = 2

// paths are the addresses by which a peer may be reached directly, and which of them works. Its methods are pure: the
// time is an argument, and they return what to send.
type paths struct {
	known map[netip.AddrPort]*path
	best  *path

	searching   time.Time // when the search began; zero while none is going on
	searchSteps int       // those of searchAt that are done
	lastSearch  time.Time
}

// path is one address of a peer.
type path struct {
	address netip.AddrPort
	// pings are the unanswered ones.
	pings    []sentPing
	lastPing time.Time
	lastPong time.Time // zero if it was never answered
	// trip is the round trip of the last ping, and trips those of the last few.
	trip  time.Duration
	trips []time.Duration
}

type sentPing struct {
	number [12]byte
	at     time.Time
}

// ping is one to be sent.
type ping struct {
	to     netip.AddrPort
	number [12]byte
	hops   int // 0 for as many as usual
}

// offer adds addresses that the peer says it has. Those that it no longer has are forgotten, unless they work.
func (p *paths) offer(addresses []netip.AddrPort) {
	if p.known == nil {
		p.known = map[netip.AddrPort]*path{}
	}
	for a, old := range p.known {
		if old.lastPong.IsZero() && !slices.Contains(addresses, a) {
			delete(p.known, a)
		}
	}
	for _, a := range addresses {
		p.add(a)
	}
}

// add returns the path with an address, nil if there are too many.
func (p *paths) add(a netip.AddrPort) *path {
	if p.known == nil {
		p.known = map[netip.AddrPort]*path{}
	}
	if known := p.known[a]; known != nil || len(p.known) >= maxPaths {
		return known
	}
	made := &path{address: a}
	p.known[a] = made
	return made
}

// search begins to look for a path, unless that is going on.
func (p *paths) search(now time.Time) {
	if p.searching.IsZero() {
		p.searching, p.searchSteps = now, 0
	}
}

// due returns the pings to send now. begun says that a search has made a step: then the peer must search as well.
func (p *paths) due(now time.Time) (pings []ping, begun bool) {
	p.review(now)
	switch {
	case p.best == nil && now.Sub(p.lastSearch) >= searchAgain, p.best != nil && now.Sub(p.lastSearch) >= compareEvery:
		p.search(now)
	}
	if !p.searching.IsZero() && now.Sub(p.searching) >= searchAt[p.searchSteps] {
		for _, one := range p.sorted() {
			pings = append(pings, one.ping(now, hopsOf(p.searchSteps, one)))
		}
		begun, p.lastSearch = true, now
		if p.searchSteps++; p.searchSteps == len(searchAt) || p.best != nil {
			p.searching = time.Time{}
		}
		return pings, begun
	}
	if p.best != nil && now.Sub(p.best.lastPing) >= pingEvery {
		pings = append(pings, p.best.ping(now, 0))
	}
	return pings, false
}

// hopsOf limits the first pings to addresses that are probably behind a NAT.
func hopsOf(step int, one *path) int {
	if step == 0 && one.lastPong.IsZero() && public(one.address.Addr()) {
		return nearHops
	}
	return 0
}

func public(a netip.Addr) bool {
	return a.Is4() && a.IsGlobalUnicast() && !a.IsPrivate()
}

func (o *path) ping(now time.Time, hops int) ping {
	sent := sentPing{number: newNumber(), at: now}
	o.pings, o.lastPing = append(o.pings[max(0, len(o.pings)-7):], sent), now
	return ping{to: o.address, number: sent.number, hops: hops}
}

// review gives up a path that has been silent for too long.
func (p *paths) review(now time.Time) {
	if p.best != nil && now.Sub(p.best.lastPong) >= lost {
		delete(p.known, p.best.address)
		if address := p.best.address; address.IsValid() {
			p.add(address) // it may work again
		}
		p.best = nil
		p.choose(now)
		p.searching = time.Time{}
		p.search(now)
	}
}

// pinged is called for an authentic ping from an address. It returns the ping that proves that the address works in
// the other direction, if that is not known.
func (p *paths) pinged(now time.Time, from netip.AddrPort) (back ping, ok bool) {
	one := p.add(from)
	if one == nil || now.Sub(one.lastPong) < lost || now.Sub(one.lastPing) < searchAt[1]/2 {
		return back, false
	}
	return one.ping(now, 0), true
}

// ponged is called for an authentic pong from an address, and reports whether it proves something new: a path that was
// not known to work, or that works again.
func (p *paths) ponged(now time.Time, from netip.AddrPort, number [12]byte) (proven bool) {
	one := p.known[from]
	if one == nil {
		return false
	}
	silent := one.lastPong.IsZero() || now.Sub(one.lastPong) >= lost
	if !one.ponged(now, number) {
		return false
	}
	p.choose(now)
	return silent
}

// ponged reports whether a pong answers one of our pings.
func (o *path) ponged(now time.Time, number [12]byte) bool {
	i := slices.IndexFunc(o.pings, func(s sentPing) bool { return s.number == number })
	if i < 0 {
		return false
	}
	o.trip = max(now.Sub(o.pings[i].at), time.Microsecond)
	o.trips = append(o.trips[max(0, len(o.trips)-recentTrips+1):], o.trip)
	o.pings, o.lastPong = o.pings[i+1:], now
	return true
}

// choose takes the fastest path that works. It stays with the present one unless another is clearly faster than that
// has been at any time lately: traffic delays pings, and must not move to another path, such as the tunnel of another
// VPN, only for that.
func (p *paths) choose(now time.Time) {
	for _, one := range p.sorted() {
		if one.lastPong.IsZero() || now.Sub(one.lastPong) >= lost {
			continue
		}
		current := p.best
		if current == nil || !current.relied(now) && one.relied(now) || one.trip*4 < slices.Min(current.trips)*3 && one.relied(now) {
			p.best = one
		}
	}
}

// relied reports whether the path was answered recently enough to carry packets alone.
func (o *path) relied(now time.Time) bool {
	return now.Sub(o.lastPong) < pingEvery+trusted+3*o.trip
}

// relayedPath is the way to a peer through a relay.
type relayedPath struct {
	path
}

// due returns the ping to send now, if any.
func (r *relayedPath) due(now time.Time) (p ping, ok bool) {
	if now.Sub(r.lastPing) < pingEvery {
		return p, false
	}
	return r.ping(now, 0), true
}

// works reports whether the peer has answered through a relay lately.
func (r *relayedPath) works(now time.Time) bool {
	return !r.lastPong.IsZero() && now.Sub(r.lastPong) < lost
}

// route is where packets go.
type route struct {
	direct netip.AddrPort // invalid if there is no direct path
	relay  bool
}

func (p *paths) route(now time.Time) route {
	if p.best == nil || now.Sub(p.best.lastPong) >= lost {
		return route{relay: true}
	}
	return route{direct: p.best.address, relay: !p.best.relied(now)}
}

// sorted lists the paths in a fixed order.
func (p *paths) sorted() []*path {
	all := make([]*path, 0, len(p.known))
	for _, one := range p.known {
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b *path) int {
		return cmp.Or(cmp.Compare(a.trip, b.trip), a.address.Compare(b.address))
	})
	return all
}

// whyNot says in words why there is no direct path.
func (p *paths) whyNot() string {
	tried := 0
	var some []string
	for _, one := range p.sorted() {
		if tried++; tried <= 3 {
			some = append(some, one.address.String())
		}
	}
	switch {
	case tried == 0:
		return "the peer has announced no address"
	case tried > 3:
		return fmt.Sprintf("none of %d addresses answers, such as %s", tried, some[0])
	case tried == 1:
		return fmt.Sprintf("%s does not answer", some[0])
	}
	return fmt.Sprintf("none of %v answers", some)
}
