package mesh

import (
	"cmp"
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
	Handshake       time.Time
	Sent, Received  uint64
	MTU             int
	SinceLastPacket time.Duration
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
}

// Status returns the present state, with peers by name.
func (m *Mesh) Status() Status {
	s := Status{Port: m.Port(), Relays: m.relays.state()}
	m.self.mu.Lock()
	s.Self = m.self.told
	m.self.mu.Unlock()
	m.mu.RLock()
	peers := make([]*peer, 0, len(m.byID))
	for _, p := range m.byID {
		peers = append(peers, p)
	}
	m.mu.RUnlock()
	now := time.Now()
	for _, p := range peers {
		s.Peers = append(s.Peers, p.status(now))
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
		s.State, s.WhyNot = StateDown, p.paths.whyNot()
	}
	return s
}
