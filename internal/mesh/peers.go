package mesh

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/tailscale/wireguard-go/device"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// prefixes finds the longest prefix that contains an address. Nodes have subnets of few different lengths, so a map
// for each length is all it takes.
type prefixes struct {
	peers map[netip.Prefix]*peer
	// lengths are those in use, by the number of bits of the addresses, longest first.
	lengths map[int][]int
}

func (s *prefixes) put(prefix netip.Prefix, p *peer) {
	if s.peers == nil {
		s.peers, s.lengths = map[netip.Prefix]*peer{}, map[int][]int{}
	}
	s.peers[prefix.Masked()] = p
	family, bits := prefix.Addr().BitLen(), prefix.Bits()
	if !slices.Contains(s.lengths[family], bits) {
		s.lengths[family] = append(s.lengths[family], bits)
		slices.SortFunc(s.lengths[family], func(a, b int) int { return b - a })
	}
}

// remove forgets a prefix, unless another peer has it by now.
func (s *prefixes) remove(prefix netip.Prefix, p *peer) {
	if s.peers[prefix.Masked()] == p {
		delete(s.peers, prefix.Masked())
	}
}

func (s *prefixes) find(a netip.Addr) *peer {
	for _, bits := range s.lengths[a.BitLen()] {
		prefix, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if p := s.peers[prefix]; p != nil {
			return p
		}
	}
	return nil
}

// SetPeers replaces all peers. Those that stay keep their sessions.
func (m *Mesh) SetPeers(all []Peer) {
	gone := map[string]bool{}
	m.mu.RLock()
	for id := range m.byID {
		gone[id] = true
	}
	m.mu.RUnlock()
	for _, p := range all {
		delete(gone, p.ID)
	}
	m.Update(all, slices.Collect(maps.Keys(gone)))
	m.tun.keepRoutes(func(p netip.Prefix) bool {
		m.mu.RLock()
		defer m.mu.RUnlock()
		return m.behind.peers[p] != nil
	})
}

// Update adds or changes some peers and removes others. A removed peer is cut off before Update returns.
func (m *Mesh) Update(changed []Peer, removed []string) {
	var dropped []*peer
	var reached []netip.Prefix
	m.mu.Lock()
	for _, id := range removed {
		if p := m.byID[id]; p != nil {
			m.forget(p)
			dropped = append(dropped, p)
		}
	}
	for _, c := range changed {
		replaced, added := m.put(c)
		if replaced != nil {
			dropped = append(dropped, replaced)
		}
		reached = append(reached, added...)
	}
	m.mu.Unlock()
	for _, p := range dropped {
		m.cutOff(p)
	}
	if err := m.tun.addRoutes(reached, 0); err != nil {
		m.log.Error("some peers cannot be reached", "error", err)
	}
}

// put adds or changes a peer. It returns the one that it replaces because its key is another, and the prefixes that
// need a route. The caller holds mu.
func (m *Mesh) put(c Peer) (replaced *peer, added []netip.Prefix) {
	if c.ID == m.opts.ID {
		return nil, nil // this node itself, perhaps with an earlier key
	}
	old := m.byID[c.ID]
	if old != nil && old.config.Key == c.Key {
		return nil, m.change(old, c)
	}
	if old != nil {
		m.forget(old)
	}
	if c.Key == m.key().Public() {
		m.log.Error("a peer has the key of this node, and is left out", "peer", c.Name, "id", c.ID)
		return old, nil
	}
	p := newPeer(m, c)
	m.byID[c.ID], m.byKey[c.Key], m.bySender[p.sender], m.byAddress[p.address] = p, p, p, p
	for _, prefix := range c.Prefixes {
		m.behind.put(prefix, p)
	}
	return old, c.Prefixes
}

// change returns the prefixes that need a route.
func (m *Mesh) change(p *peer, c Peer) (added []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config.equal(c) {
		return nil
	}
	if !slices.Equal(p.config.Prefixes, c.Prefixes) {
		for _, prefix := range p.config.Prefixes {
			m.behind.remove(prefix, p)
		}
		for _, prefix := range c.Prefixes {
			m.behind.put(prefix, p)
		}
		m.tun.removeRoutes(p.config.Prefixes)
		added = c.Prefixes
		if active, ok := m.device.LookupActivePeer(device.NoisePublicKey(c.Key)); ok {
			active.SetAllowedIPs(c.Prefixes)
		}
	}
	if p.config.Relay != c.Relay {
		p.absent = nil
	}
	p.config = c
	if p.paths.known != nil {
		p.paths.offer(c.Candidates)
		p.paths.search(time.Now())
	}
	return added
}

// forget removes a peer from the tables. The caller holds mu.
func (m *Mesh) forget(p *peer) {
	m.former.add(p)
	delete(m.byID, p.id)
	delete(m.byKey, p.config.Key)
	delete(m.bySender, p.sender)
	delete(m.byAddress, p.address)
	for _, prefix := range p.config.Prefixes {
		m.behind.remove(prefix, p)
	}
}

// cutOff ends a peer's session and forgets its paths.
func (m *Mesh) cutOff(p *peer) {
	m.device.RemovePeer(device.NoisePublicKey(p.config.Key))
	m.prober.remove(p)
	m.tun.removeRoutes(p.config.Prefixes)
}

// lookUp is called by WireGuard for a key that it does not know.
func (m *Mesh) lookUp(key device.NoisePublicKey) (*device.NewPeerConfig, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p := m.byKey[Key(key)]
	if p == nil {
		return nil, false
	}
	return &device.NewPeerConfig{AllowedIPs: p.config.Prefixes, Endpoint: p}, true
}

// route is called by WireGuard for every packet from the interface.
func (m *Mesh) route(_, to netip.Addr, _ []byte) (key device.NoisePublicKey, ok bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p := m.behind.find(to)
	if p == nil {
		return key, false
	}
	return device.NoisePublicKey(p.config.Key), true
}

// sessionChanged is called by WireGuard. It must be quick.
//
// WireGuard refuses handshakes of a peer that are older than the last one, as after its clock was set back. Without a
// session there is nothing to protect, so an expired peer is forgotten: the next handshake makes it anew. A session that
// ends earlier was ended by us.
func (m *Mesh) sessionChanged(key device.NoisePublicKey, s device.PeerSessionState) {
	if s != device.PeerSessionExpired {
		return
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if p := m.byKey[Key(key)]; p != nil && m.clock()-p.established.Load() >= int64(device.RejectAfterTime-time.Second) {
		m.tasks.Go(func() { m.device.RemovePeer(key) })
	}
}

func (m *Mesh) peerAt(a relay.Address) *peer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.byAddress[a]
}

func (m *Mesh) peerWith(s senderID) *peer {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.bySender[s]
}

// absentAt notes that a peer is not connected to a relay.
func (m *Mesh) absentAt(a relay.Address, id string) {
	p := m.peerAt(a)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	absent := maps.Clone(p.absent) // others read the old one
	if absent == nil {
		absent = map[string]time.Time{}
	}
	absent[id] = time.Now().Add(absentFor)
	p.absent = absent
}

// releaseHeld sends what waits for a relay.
func (m *Mesh) releaseHeld() {
	for _, p := range m.prober.all() {
		p.release()
	}
}
