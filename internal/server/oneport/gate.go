package oneport

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// gate decides when the handshake of a connection begins, and which unauthenticated connections stay open.
//
// A connection moves forward only:
//
//	waiting ──▶ shaking ──▶ stranger ──▶ known
//	   │           │  └───────────────────▲│
//	   └───────────┴───────────┴───────────┴──▶ gone
//
// A connection that becomes known gives back what it took from the rates: thousands of members that reconnect wait only
// for the handshakes before theirs.
type gate struct {
	limits  Limits
	timeout time.Duration // for waiting
	start   func(*conn)   // begins a handshake; it must not block

	mu      sync.Mutex
	sources map[netip.Prefix]*source
	rate    bucket
	// turns are the sources with waiting connections, in the order of their turns.
	turns   []*source
	waiting int
	// shaking and strangers hold *conn, the oldest first.
	shaking, strangers *list.List
	byRemote           map[netip.AddrPort]*conn // of the strangers
	calls              int                      // of strangers, at this moment
	timer              *time.Timer              // checks again while connections wait
	closed             bool
}

type source struct {
	rate                      bucket
	waiting                   []*conn
	shaking, strangers, known int
}

type stage int

const (
	stageNone stage = iota
	stageWaiting
	stageShaking
	stageStranger
	stageKnown
	stageGone
)

// lookAgain is how often a gate checks whether another connection may begin its handshake.
const lookAgain = 50 * time.Millisecond

// silentAfter is how long a client may send nothing while others wait for its place.
const silentAfter = 500 * time.Millisecond

func newGate(limits Limits, timeout time.Duration) *gate {
	return &gate{
		limits: limits, timeout: timeout, rate: newBucket(limits.Rate, limits.Burst, time.Now()),
		sources: map[netip.Prefix]*source{}, byRemote: map[netip.AddrPort]*conn{},
		shaking: list.New(), strangers: list.New(),
	}
}

// locked runs a change of the gate under its lock, and then closes the connections that have to make room.
func (g *gate) locked(change func(now time.Time) (doomed []*conn)) {
	g.mu.Lock()
	doomed := change(time.Now())
	g.mu.Unlock()
	for _, c := range doomed {
		c.abort() // removes it from the gate
	}
}

// arrive takes a new connection: its handshake begins, or it waits, or it is closed. It reports whether it was closed.
func (g *gate) arrive(c *conn) (refused bool) {
	g.locked(func(now time.Time) []*conn {
		s := g.source(sourceOf(c.RemoteAddr()), now)
		c.source = s
		switch {
		case g.closed:
			return []*conn{c}
		case len(s.waiting) == 0 && g.may(s, now):
			g.begin(c, now)
			return nil
		case len(s.waiting) >= g.room(s, now):
			refused = true
			return []*conn{c}
		}
		g.wait(c, now)
		return g.stale(now)
	})
	return refused
}

// source finds or makes the account of a source. Accounts without debts are forgotten when there are many.
func (g *gate) source(of netip.Prefix, now time.Time) *source {
	if s := g.sources[of]; s != nil {
		return s
	}
	if n := len(g.sources); n >= 1024 && n&(n-1) == 0 {
		for key, s := range g.sources {
			if s.shaking+s.strangers+s.known+len(s.waiting) == 0 && s.rate.full(now) {
				delete(g.sources, key)
			}
		}
	}
	s := &source{rate: newBucket(g.limits.SourceRate, g.limits.SourceBurst, now)}
	g.sources[of] = s
	return s
}

// may reports whether another handshake of a source may begin. However many strangers come, a source with a known
// connection is limited only by its own rate.
func (g *gate) may(s *source, now time.Time) bool {
	return g.mayAny() && s.shaking < g.limits.SourceHandshakes && s.rate.has(now) && (s.known > 0 || g.rate.has(now))
}

func (g *gate) mayAny() bool { return !g.closed && g.shaking.Len() < g.limits.Handshakes }

// pressed reports whether more than half of the handshake budget for strangers is used up.
func (g *gate) pressed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rate.fill(time.Now())
	return g.rate.tokens < g.limits.Burst/2
}

// room is how many connections of a source may wait. It is small for a source that has used up its rate by connections
// that have ended. Open connections may still authenticate.
func (g *gate) room(s *source, now time.Time) int {
	most := g.limits.Waiting - g.waiting // half of it for one source alone, half of the rest for the next
	s.rate.fill(now)
	if s.rate.tokens+float64(s.shaking+s.strangers) < g.limits.SourceBurst/2 {
		most = min(most, waitingOverRate)
	}
	return most
}

func (g *gate) begin(c *conn, now time.Time) {
	c.stage, c.since = stageShaking, now
	c.element = g.shaking.PushBack(c)
	c.source.shaking++
	c.source.rate.take()
	g.rate.take()
	g.start(c)
}

func (g *gate) wait(c *conn, now time.Time) {
	s := c.source
	c.stage, c.since = stageWaiting, now
	s.waiting = append(s.waiting, c)
	g.waiting++
	if len(s.waiting) == 1 {
		g.turns = append(g.turns, s)
	}
	g.rouse()
}

// stale finds the handshakes that take so long that waiting connections should have their places. Clients that have not
// sent a byte lose theirs sooner: silence costs an attacker nothing.
func (g *gate) stale(now time.Time) (doomed []*conn) {
	full := g.shaking.Len() >= g.limits.Handshakes
	for e := g.shaking.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		age := now.Sub(c.since)
		if age < silentAfter {
			return doomed // those behind it are younger
		}
		blocks := full || c.source.shaking >= g.limits.SourceHandshakes && len(c.source.waiting) > 0
		if blocks && (age >= staleAfter || !c.heard.Load()) {
			doomed = append(doomed, c)
		}
	}
	return doomed
}

// next begins the handshakes of waiting connections, as many as may begin, one of each source in turn. It returns those
// whose waiting time has ended.
func (g *gate) next(now time.Time) (expired []*conn) {
	const most = 64 // sources that are checked, however many wait
	for idle := 0; len(g.turns) > 0 && idle < min(len(g.turns), most) && g.mayAny(); {
		s := g.turns[0]
		g.turns = g.turns[1:]
		c := s.waiting[0]
		idle++
		switch {
		case c.stage == stageGone:
			s.waiting, idle = s.waiting[1:], 0
		case now.Sub(c.since) > g.timeout:
			s.waiting, idle = s.waiting[1:], 0
			expired = append(expired, c)
		case g.may(s, now):
			s.waiting, idle = s.waiting[1:], 0
			g.waiting--
			g.begin(c, now)
		}
		if len(s.waiting) > 0 {
			g.turns = append(g.turns, s)
		} else {
			s.waiting = nil
		}
	}
	g.rouse()
	return expired
}

// rouse makes the gate check again later if connections wait.
func (g *gate) rouse() {
	if g.waiting == 0 || g.timer != nil || g.closed {
		return
	}
	g.timer = time.AfterFunc(lookAgain, func() {
		g.locked(func(now time.Time) []*conn {
			g.timer = nil
			return append(g.stale(now), g.next(now)...)
		})
	})
}

// finished takes a connection whose handshake is done. It reports whether the connection is still open.
func (g *gate) finished(c *conn, member bool) (open bool) {
	g.locked(func(now time.Time) (doomed []*conn) {
		if c.stage != stageShaking {
			return nil
		}
		open = true
		g.shaking.Remove(c.element)
		c.source.shaking--
		if member {
			g.trust(c)
		} else {
			doomed = g.welcome(c, now)
		}
		return append(doomed, g.next(now)...)
	})
	return open
}

// trust makes a connection a known one.
func (g *gate) trust(c *conn) {
	c.stage, c.element = stageKnown, nil
	c.limited.Store(false)
	c.source.known++
	c.source.rate.giveBack()
	g.rate.giveBack()
}

// welcome makes a connection one of a stranger, and returns the connections that have to make room.
func (g *gate) welcome(c *conn, now time.Time) (doomed []*conn) {
	s := c.source
	switch {
	case s.strangers >= g.limits.SourceStrangers:
		doomed = g.oldest(func(other *conn) bool { return other.source == s })
	case g.strangers.Len() >= g.limits.Strangers:
		doomed = g.oldest(func(*conn) bool { return true })
	}
	c.stage, c.since = stageStranger, now
	c.element = g.strangers.PushBack(c)
	s.strangers++
	c.budget.Store(g.limits.Bytes)
	c.limited.Store(true)
	c.timer = time.AfterFunc(g.limits.Patience, func() { g.expire(c) })
	if remote, ok := remoteOf(c.RemoteAddr()); ok {
		g.byRemote[remote] = c
	}
	return doomed
}

// oldest returns the oldest stranger of those that match, preferably one that waits for no answer.
func (g *gate) oldest(of func(*conn) bool) []*conn {
	var found *conn
	for e := g.strangers.Front(); e != nil; e = e.Next() {
		c := e.Value.(*conn)
		if !of(c) {
			continue
		}
		if c.calls == 0 {
			return []*conn{c}
		}
		if found == nil {
			found = c
		}
	}
	if found == nil {
		return nil
	}
	return []*conn{found}
}

func (g *gate) expire(c *conn) {
	g.locked(func(time.Time) []*conn {
		if c.stage != stageStranger {
			return nil
		}
		return []*conn{c}
	})
}

// authenticated makes a stranger's connection a known one.
func (g *gate) authenticated(c *conn) {
	g.locked(func(now time.Time) []*conn {
		if c.stage != stageStranger {
			return nil
		}
		g.forget(c)
		g.trust(c)
		return g.next(now)
	})
}

// forget removes a connection from the strangers.
func (g *gate) forget(c *conn) {
	g.strangers.Remove(c.element)
	c.element = nil
	c.source.strangers--
	c.timer.Stop()
	if remote, ok := remoteOf(c.RemoteAddr()); ok && g.byRemote[remote] == c {
		delete(g.byRemote, remote)
	}
}

// leave removes a closed connection.
func (g *gate) leave(c *conn) {
	g.locked(func(now time.Time) []*conn {
		switch c.stage {
		case stageWaiting:
			g.waiting-- // next skips it
		case stageShaking:
			g.shaking.Remove(c.element)
			c.source.shaking--
		case stageStranger:
			g.forget(c)
		case stageKnown:
			c.source.known--
		}
		c.stage = stageGone
		return g.next(now)
	})
}

// call counts a call of a stranger, and reports whether it did and whether the call may be made. If there are too many,
// the oldest ones make room: calls of joining machines take milliseconds.
func (g *gate) call(c *conn) (counted, may bool) {
	g.locked(func(now time.Time) (doomed []*conn) {
		switch {
		case c.stage != stageStranger:
			may = c.stage == stageKnown
			return nil
		case c.calls >= g.limits.Calls:
			return nil
		case g.calls >= g.limits.AllCalls:
			if doomed = g.oldest(func(other *conn) bool { return other.calls > 0 && now.Sub(other.since) >= staleAfter }); len(doomed) == 0 {
				return nil
			}
		}
		counted, may = true, true
		c.calls++
		g.calls++
		return doomed
	})
	return counted, may
}

func (g *gate) callEnded(c *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.calls--
	g.calls--
}

// find returns the connection of a stranger; nil if there is none from this address.
func (g *gate) find(remote net.Addr) *conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	key, ok := remoteOf(remote)
	if !ok {
		return nil
	}
	return g.byRemote[key]
}

func remoteOf(addr net.Addr) (netip.AddrPort, bool) {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, false
	}
	return tcp.AddrPort(), true
}

// close prevents further handshakes, and closes the connections that wait for one.
func (g *gate) close() {
	g.locked(func(time.Time) (doomed []*conn) {
		g.closed = true
		if g.timer != nil {
			g.timer.Stop()
		}
		for _, s := range g.turns {
			doomed = append(doomed, s.waiting...)
		}
		g.turns = nil
		return doomed
	})
}
