package mesh

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"
)

// State is how a peer is reached.
type State string

const (
	// StateIdle is a peer without traffic: how it would be reached is found out when it is needed.
	StateIdle State = "idle"
	// StateDirect is a peer with a direct path.
	StateDirect State = "direct"
	// StateRelayed is a peer that is reached through a relay.
	StateRelayed State = "relayed"
	// StateDown is a peer that does not answer.
	StateDown State = "down"
)

// PeerStatus is how a peer is reached now.
type PeerStatus struct {
	ID, Name string
	State    State
	// Address is that of the direct path, and RoundTrip what a ping takes, directly or through the relay.
	Address   netip.AddrPort
	RoundTrip time.Duration
	// Relay is the peer's relay.
	Relay string
	// WhyNot says why there is no direct path.
	WhyNot string
	// Handshake is when a key was last agreed on; zero if never.
	Handshake time.Time
	// Sent and Received are bytes since the peer is known, and the rates are bytes per second now.
	Sent, Received         uint64
	SentRate, ReceivedRate uint64
	MTU                    int
	SinceLastPacket        time.Duration
}

// RelayStatus is the connection to a relay.
type RelayStatus struct {
	ID, Address string
	Home        bool
	Connected   bool
	RoundTrip   time.Duration
}

// Status is the state of a node's part of the mesh.
type Status struct {
	Self   Announcement
	Port   uint16
	Peers  []PeerStatus
	Relays []RelayStatus
	// States counts the peers in each state, including those that Peers leaves out.
	States map[State]int
	Totals Totals
}

// Totals count everything since the mesh was opened. They never decrease.
type Totals struct{ Sent, Received, Handshakes uint64 }

// Status returns the present state, with peers by name. Idle peers are left out unless all is set: there may be
// thousands of them.
func (m *Mesh) Status(all bool) Status {
	s := Status{Port: m.Port(), Relays: m.relays.state()}
	m.self.mu.Lock()
	s.Self = m.self.told
	m.self.mu.Unlock()
	m.mu.RLock()
	peers := make([]*peer, 0, len(m.byID))
	for _, p := range m.byID {
		peers = append(peers, p)
	}
	s.States, s.Totals = map[State]int{}, m.former
	m.mu.RUnlock()
	now := time.Now()
	for _, p := range peers {
		one := p.status(now)
		s.States[one.State]++
		s.Totals.add(p)
		if all || one.State != StateIdle {
			s.Peers = append(s.Peers, one)
		}
	}
	slices.SortFunc(s.Peers, func(a, b PeerStatus) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return s
}

func (p *peer) status(now time.Time) PeerStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PeerStatus{
		ID: p.id, Name: p.config.Name, State: StateIdle, Relay: p.config.Relay,
		Sent: p.sentBytes.Load(), Received: p.receivedBytes.Load(), MTU: p.fit.found,
	}
	if at := p.handshake.Load(); at != 0 {
		s.Handshake = time.Unix(0, at)
	}
	if p.lastPacket.Load() != 0 {
		s.SinceLastPacket = p.idleFor()
	}
	if !p.busy.Load() {
		return s
	}
	next := p.paths.route(now)
	switch {
	case next.direct.IsValid():
		s.State, s.Address, s.RoundTrip = StateDirect, next.direct, p.paths.best.trip
	case p.relayed.works(now):
		s.State, s.RoundTrip, s.WhyNot = StateRelayed, p.relayed.trip, p.paths.whyNot()
	default:
		s.State, s.WhyNot = StateDown, p.paths.whyNot()+", and no relay reaches it"
	}
	s.SentRate, s.ReceivedRate = p.meter.sentRate, p.meter.receivedRate
	return s
}

func (t *Totals) add(p *peer) {
	t.Sent += p.sentBytes.Load()
	t.Received += p.receivedBytes.Load()
	t.Handshakes += p.handshakes.Load()
}

// meterWindow is the time over which rates are measured.
const meterWindow = 2 * time.Second

// meter turns counters into rates.
type meter struct {
	since                  time.Time
	sent, received         uint64
	sentRate, receivedRate uint64
}

// sample is told the counters often, and measures once in a window.
func (m *meter) sample(now time.Time, sent, received uint64) {
	passed := now.Sub(m.since)
	if !m.since.IsZero() && passed < meterWindow {
		return
	}
	if !m.since.IsZero() {
		m.sentRate = uint64(float64(sent-m.sent) / passed.Seconds())
		m.receivedRate = uint64(float64(received-m.received) / passed.Seconds())
	}
	m.since, m.sent, m.received = now, sent, received
}

// probePause is how often Probe looks whether a path was found.
const probePause = 50 * time.Millisecond

// Probe finds out how a peer is reached, as if there was a packet for it. It returns when there is a direct path, or the
// state at the end of ctx. It reports false if the peer is not known.
func (m *Mesh) Probe(ctx context.Context, id string) (PeerStatus, bool) {
	for {
		m.mu.RLock()
		p := m.byID[id]
		m.mu.RUnlock()
		if p == nil {
			return PeerStatus{}, false
		}
		p.touch()
		if s := p.status(time.Now()); s.State == StateDirect {
			return s, true
		}
		select {
		case <-ctx.Done():
			return p.status(time.Now()), true
		case <-time.After(probePause):
		}
	}
}
