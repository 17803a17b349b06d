package mesh

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tailscale/wireguard-go/device"
)

// proberTick is how often busy peers are looked at. While there are none, nothing happens.
const proberTick = 100 * time.Millisecond

// prober looks after the paths of peers that there is traffic with.
type prober struct {
	mesh *Mesh
	wake chan struct{}

	mu   sync.Mutex
	busy map[*peer]bool
}

func newProber(m *Mesh) *prober {
	return &prober{mesh: m, wake: make(chan struct{}, 1), busy: map[*peer]bool{}}
}

// add is called for the first packet to or from an idle peer.
func (b *prober) add(p *peer) {
	b.mu.Lock()
	b.busy[p] = true
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *prober) remove(p *peer) {
	b.mu.Lock()
	delete(b.busy, p)
	b.mu.Unlock()
	b.mesh.stopListening(p)
}

func (b *prober) all() []*peer {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.busy))
}

func (b *prober) run(ctx context.Context) {
	ticker := time.NewTicker(proberTick)
	defer ticker.Stop()
	for {
		busy := b.all()
		if len(busy) == 0 {
			ticker.Stop()
			select {
			case <-ctx.Done():
				return
			case <-b.wake:
				ticker.Reset(proberTick)
			}
			continue
		}
		now := time.Now()
		b.mesh.self.refresh(now)
		for _, p := range busy {
			b.look(now, p)
		}
		select {
		case <-ctx.Done():
			return
		case <-b.wake:
		case <-ticker.C:
		}
	}
}

// look sends the pings that are due, and decides where packets go.
func (b *prober) look(now time.Time, p *peer) {
	if p.idleFor() > idleAfter {
		b.rest(p)
		return
	}
	p.mu.Lock()
	if p.paths.known == nil {
		p.paths.offer(p.config.Candidates)
	}
	p.meter.sample(now, p.sentBytes.Load(), p.receivedBytes.Load())
	pings, begun := p.paths.due(now)
	p.decide(now)
	var relayed ping
	var pingRelay bool
	if p.next.Load().relay {
		relayed, pingRelay = p.relayed.due(now)
	}
	p.mu.Unlock()
	for _, one := range pings {
		b.mesh.sendPing(p, one)
	}
	if pingRelay {
		b.mesh.sendThroughRelay(p, probe{kind: probePing, number: relayed.number})
	}
	if begun && p.next.Load().relay {
		b.mesh.sendThroughRelay(p, probe{kind: probeCandidates, addresses: b.mesh.self.candidates()})
	}
	b.mesh.searchMTU(now, p)
}

// rest lets an idle peer cost nothing. Its path is forgotten: it may be gone by the time of the next packet.
func (b *prober) rest(p *peer) {
	p.mu.Lock()
	p.paths = paths{}
	p.fit, p.relayed, p.meter = mtuSearch{}, relayedPath{}, meter{}
	p.next.Store(&route{relay: true})
	p.mu.Unlock()
	b.remove(p)
	p.busy.Store(false)
	if p.idleFor() < idleAfter { // a packet came meanwhile, and saw a busy peer
		p.touch()
	}
}

// decide stores where packets go from now on. The caller holds mu.
func (p *peer) decide(now time.Time) {
	if next := p.paths.route(now); *p.next.Load() != next {
		p.next.Store(&next)
	}
}

// control handles a datagram that is not WireGuard's, or not of a known path.
func (m *Mesh) control(datagram []byte, from netip.AddrPort) {
	if sender, ok := isProbe(datagram); ok {
		if p := m.peerWith(sender); p != nil {
			m.probed(p, datagram, from)
		}
		return
	}
	if isWireGuard(datagram) {
		return
	}
	m.self.stun.received(datagram, from)
}

// sendTo sends a datagram for which it does not matter whether it arrives.
func (m *Mesh) sendTo(to netip.AddrPort, datagram []byte) {
	if s := m.bind.socketFor(to.Addr()); s != nil {
		_, _ = s.conn.WriteToUDPAddrPort(datagram, to)
	}
}

// probed handles a probe that came directly.
func (m *Mesh) probed(p *peer, datagram []byte, from netip.AddrPort) {
	now := time.Now()
	p.mu.Lock()
	got, err := p.open(datagram)
	if err != nil {
		p.mu.Unlock()
		return
	}
	var back ping
	var pingBack, proven, known bool
	switch got.kind {
	case probePing:
		back, pingBack = p.paths.pinged(now, from)
		known = p.paths.known[from] != nil
	case probePong:
		if p.fit.ponged(got.number) {
			break
		}
		proven = p.paths.ponged(now, from, got.number)
		p.decide(now)
	}
	p.mu.Unlock()
	if got.kind == probePing {
		if known { // its packets may follow at once; whether ours arrive is another question
			m.listenTo(p, from)
		}
		m.sendPong(p, got, from)
	}
	p.renewForgotten()
	if pingBack {
		m.sendPing(p, back)
	}
	if proven {
		m.listenTo(p, from)
		p.release()
	}
}

// open reads a probe of the peer. The caller holds mu.
func (p *peer) open(datagram []byte) (probe, error) {
	seal, err := p.sealing()
	if err != nil {
		return probe{}, err
	}
	got, err := openProbe(seal, datagram)
	if err == nil && got.instance != p.theirs {
		p.forgotten = p.theirs != ([8]byte{})
		p.theirs = got.instance
	}
	return got, err
}

// renewForgotten begins a new session with a peer that has forgotten the old one. WireGuard alone would notice that only
// after 15 seconds. The peer must have our answer by then, and lets our packets in.
func (p *peer) renewForgotten() {
	p.mu.Lock()
	forgotten := p.forgotten
	p.forgotten = false
	p.mu.Unlock()
	if !forgotten {
		return
	}
	noticed := p.mesh.clock()
	p.mesh.tasks.Go(func() { // WireGuard calls us, so it must not wait for us
		active, ok := p.mesh.device.LookupActivePeer(device.NoisePublicKey(p.key))
		if ok && p.mayInitiate(noticed) {
			active.ExpireCurrentKeypairs()
			_ = active.SendHandshakeInitiation(false) // tried again with the next packet
		}
	})
}

// mayInitiate reports whether the peer has not begun a session since a time. Later initiations of the peer cross ours.
func (p *peer) mayInitiate(since int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.invited >= since {
		return false
	}
	p.initiated.Store(p.mesh.clock())
	return true
}

// probedByRelay handles a probe that came through a relay.
func (m *Mesh) probedByRelay(p *peer, packet []byte) {
	now := time.Now()
	p.mu.Lock()
	got, err := p.open(packet)
	switch {
	case err != nil:
	case got.kind == probePong:
		p.relayed.ponged(now, got.number)
	case got.kind == probeCandidates: // the peer asks us to search as well
		p.paths.offer(append(slices.Clone(p.config.Candidates), got.addresses...))
		if p.paths.best == nil {
			p.paths.search(now)
		}
	}
	p.mu.Unlock()
	if err == nil && got.kind == probePing {
		m.sendThroughRelay(p, probe{kind: probePong, number: got.number})
	}
	p.renewForgotten()
}

// listenTo lets WireGuard's packets in from an address.
func (m *Mesh) listenTo(p *peer, a netip.AddrPort) {
	if (*m.sources.Load())[a] != p {
		m.replaceSources(func(sources map[netip.AddrPort]*peer) { sources[a] = p })
	}
}

// stopListening forgets all addresses of a peer.
func (m *Mesh) stopListening(p *peer) {
	m.replaceSources(func(sources map[netip.AddrPort]*peer) {
		maps.DeleteFunc(sources, func(_ netip.AddrPort, q *peer) bool { return q == p })
	})
}

func (m *Mesh) replaceSources(edit func(map[netip.AddrPort]*peer)) {
	for {
		old := m.sources.Load()
		sources := maps.Clone(*old)
		edit(sources)
		if m.sources.CompareAndSwap(old, &sources) {
			return
		}
	}
}

// sealed is a probe to a peer, ready to be sent.
func (m *Mesh) sealed(p *peer, content probe) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	seal, err := p.sealing()
	if err != nil {
		return nil
	}
	content.instance = p.instance
	return appendProbe(nil, seal, senderOf(m.key().Public()), content)
}

func (m *Mesh) sendPing(p *peer, one ping) {
	datagram := m.sealed(p, probe{kind: probePing, number: one.number})
	if one.hops == 0 {
		m.sendTo(one.to, datagram)
	} else if s := m.bind.socketFor(one.to.Addr()); s != nil {
		_ = s.sendFor(datagram, one.to, one.hops) // one that cannot be sent is like one that is not answered
	}
}

func (m *Mesh) sendPong(p *peer, asked probe, to netip.AddrPort) {
	m.sendTo(to, m.sealed(p, probe{kind: probePong, number: asked.number}))
}

func (m *Mesh) sendThroughRelay(p *peer, content probe) {
	m.relays.send(p, [][]byte{m.sealed(p, content)}, 0)
}
