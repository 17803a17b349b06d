package mesh

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// lan answers pings for some addresses.
type lan struct {
	now     time.Time
	paths   paths
	answers map[netip.AddrPort]time.Duration // round trips
	steps   int
}

func newLAN(addresses ...string) *lan {
	l := &lan{now: time.Now(), answers: map[netip.AddrPort]time.Duration{}}
	var all []netip.AddrPort
	for _, a := range addresses {
		all = append(all, netip.MustParseAddrPort(a))
	}
	l.paths.offer(all)
	return l
}

// pass lets time go by, in steps of a hundredth of a second.
func (l *lan) pass(d time.Duration) {
	type pong struct {
		at   time.Time
		ping ping
	}
	var under []pong
	for end := l.now.Add(d); l.now.Before(end); l.now = l.now.Add(10 * time.Millisecond) {
		for len(under) > 0 && !under[0].at.After(l.now) {
			l.paths.ponged(l.now, under[0].ping.to, under[0].ping.number)
			under = under[1:]
		}
		pings, begun := l.paths.due(l.now)
		if begun {
			l.steps++
		}
		for _, p := range pings {
			if trip, ok := l.answers[p.to]; ok && p.hops == 0 {
				under = append(under, pong{l.now.Add(trip), p})
			}
		}
		slices.SortStableFunc(under, func(a, b pong) int { return a.at.Compare(b.at) })
	}
}

func (l *lan) wantRoute(t *testing.T, direct string, relay bool) {
	t.Helper()
	want := route{relay: relay}
	if direct != "" {
		want.direct = netip.MustParseAddrPort(direct)
	}
	if got := l.paths.route(l.now); got != want {
		t.Errorf("packets go %+v, want %+v", got, want)
	}
}

const (
	near = "192.168.1.2:7000"
	far  = "203.0.113.9:7000"
)

func TestPacketsTakeTheRelayUntilAPathIsProven(t *testing.T) {
	l := newLAN(near, far)
	l.wantRoute(t, "", true)
	l.pass(2 * time.Second)
	l.wantRoute(t, "", true)
	l.answers[netip.MustParseAddrPort(far)] = 20 * time.Millisecond
	l.pass(searchAgain)
	l.wantRoute(t, far, false)
}

func TestFasterPathIsPreferred(t *testing.T) {
	l := newLAN(near, far)
	l.answers[netip.MustParseAddrPort(far)] = 40 * time.Millisecond
	l.answers[netip.MustParseAddrPort(near)] = 10 * time.Millisecond
	l.pass(5 * time.Second)
	l.wantRoute(t, near, false)
}

// Traffic delays the answers to pings on the path that it takes.
func TestPathThatIsSlowForSomeSecondsIsKept(t *testing.T) {
	l := newLAN(near, far)
	l.answers[netip.MustParseAddrPort(near)] = 10 * time.Millisecond
	l.answers[netip.MustParseAddrPort(far)] = 20 * time.Millisecond
	l.pass(5 * time.Second)
	l.wantRoute(t, near, false)
	l.answers[netip.MustParseAddrPort(near)] = 100 * time.Millisecond
	l.paths.search(l.now)
	l.pass(5 * time.Second)
	l.wantRoute(t, near, false)
	l.pass(compareEvery)
	l.wantRoute(t, far, false)
}

// A path that fails is doubted within two seconds, and given up after some more.
func TestPacketsReturnToTheRelayWhenThePathFails(t *testing.T) {
	l := newLAN(near)
	l.answers[netip.MustParseAddrPort(near)] = 10 * time.Millisecond
	l.pass(5 * time.Second)
	l.wantRoute(t, near, false)
	clear(l.answers)
	l.pass(2 * time.Second)
	l.wantRoute(t, near, true)
	l.pass(lost)
	l.wantRoute(t, "", true)
	l.answers[netip.MustParseAddrPort(near)] = 10 * time.Millisecond
	l.pass(searchAgain)
	l.wantRoute(t, near, false)
}

func TestPacketsMoveToAnotherPathThatWorks(t *testing.T) {
	l := newLAN(near, far)
	l.answers[netip.MustParseAddrPort(far)] = 40 * time.Millisecond
	l.answers[netip.MustParseAddrPort(near)] = 10 * time.Millisecond
	l.pass(5 * time.Second)
	delete(l.answers, netip.MustParseAddrPort(near))
	l.pass(lost + 5*time.Second)
	l.wantRoute(t, far, false)
}

// The first pings to an address behind a NAT go only a few hops.
func TestFirstPingsDoNotReachTheOtherNAT(t *testing.T) {
	l := newLAN(near, far)
	first, begun := l.paths.due(l.now)
	if !begun || len(first) != 2 {
		t.Fatalf("the search begins with %v", first)
	}
	for _, p := range first {
		if want := map[string]int{near: 0, far: nearHops}[p.to.String()]; p.hops != want {
			t.Errorf("the first ping to %v goes %d hops, want %d", p.to, p.hops, want)
		}
	}
	second, _ := l.paths.due(l.now.Add(searchAt[1]))
	for _, p := range second {
		if p.hops != 0 {
			t.Errorf("the second ping to %v goes %d hops", p.to, p.hops)
		}
	}
}

// A pong counts only with the number of a ping to the address that it comes from.
func TestForeignPongsProveNothing(t *testing.T) {
	l := newLAN(near, far)
	l.paths.due(l.now)
	pings, _ := l.paths.due(l.now.Add(searchAt[1]))
	for _, p := range pings {
		if p.to.String() == near && l.paths.ponged(l.now, netip.MustParseAddrPort(far), p.number) {
			t.Error("a pong from another address was accepted")
		}
	}
	if l.paths.ponged(l.now, netip.MustParseAddrPort(near), newNumber()) {
		t.Error("a pong with an unknown number was accepted")
	}
	if pings[0].to.String() == near && !l.paths.ponged(l.now, pings[0].to, pings[0].number) {
		t.Error("the true pong was refused")
	}
	if l.paths.ponged(l.now, pings[0].to, pings[0].number) {
		t.Error("a repeated pong was accepted")
	}
}

// A peer that moved pings from its new address, and is pinged back there.
func TestPeerThatMovedIsFound(t *testing.T) {
	l := newLAN(near)
	l.answers[netip.MustParseAddrPort(near)] = 10 * time.Millisecond
	l.pass(3 * time.Second)
	clear(l.answers)
	moved := netip.MustParseAddrPort("192.168.7.7:7000")
	back, ok := l.paths.pinged(l.now, moved)
	if !ok || back.to != moved {
		t.Fatalf("the new address was pinged back with %v, %v", back, ok)
	}
	if _, again := l.paths.pinged(l.now, moved); again {
		t.Error("every ping is answered by a ping")
	}
	l.pass(1800 * time.Millisecond)
	if !l.paths.ponged(l.now, moved, back.number) {
		t.Error("the new address was not proven")
	}
	l.answers[moved] = 10 * time.Millisecond
	l.wantRoute(t, moved.String(), false)
}

func TestPeerCannotMakeUsRememberTooMuch(t *testing.T) {
	var p paths
	now := time.Now()
	for i := range 10 * maxPaths {
		p.pinged(now, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 1))
	}
	if len(p.known) > maxPaths {
		t.Errorf("%d addresses are remembered", len(p.known))
	}
}
