package mesh

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// askAgain is how often servers are asked for our public address while there is traffic: a NAT forgets an address
	// that is not used.
	askAgain = 25 * time.Second
	// settle is how long addresses may change before peers are told.
	settle = 50 * time.Millisecond
)

// self knows how this node can be reached.
type self struct {
	mesh    *Mesh
	stun    *stunClient
	changes chan struct{}

	mu       sync.Mutex
	home     string
	local    []netip.AddrPort
	asked    time.Time
	told     Announcement
	toldOnce bool
}

func newSelf(m *Mesh) *self {
	s := &self{mesh: m, changes: make(chan struct{}, 1)}
	s.stun = newSTUNClient(s.announce)
	return s
}

// run watches the machine's addresses until ctx ends.
func (s *self) run(ctx context.Context) {
	updates, done := make(chan netlink.AddrUpdate), make(chan struct{})
	defer close(done)
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		s.mesh.log.Warn("changes of the machine's addresses are not seen", "error", err)
	}
	s.lookAround()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-updates:
			if !open {
				updates = nil
				continue
			}
			s.lookAround()
		case <-s.changes:
			if !sleep(ctx, settle) {
				return
			}
			s.tell()
		}
	}
}

// lookAround lists the machine's addresses, and asks for the public ones if they have changed.
func (s *self) lookAround() {
	local := s.localAddresses()
	s.mu.Lock()
	changed := !slices.Equal(local, s.local)
	s.local = local
	s.mu.Unlock()
	if changed {
		s.ask(time.Now())
		s.announce()
		s.mesh.searchAll()
	}
}

// localAddresses are those of the machine's interfaces, but for what leads through the mesh itself.
func (s *self) localAddresses() (list []netip.AddrPort) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, one := range all {
		n, ok := one.(*net.IPNet)
		if !ok {
			continue
		}
		a, ok := netip.AddrFromSlice(n.IP)
		if a = a.Unmap(); !ok || !a.IsGlobalUnicast() || s.inMesh(a) {
			continue
		}
		list = append(list, netip.AddrPortFrom(a, s.mesh.Port()))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

func (s *self) inMesh(a netip.Addr) bool {
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	return slices.ContainsFunc(s.mesh.opts.Ranges, contains) || slices.ContainsFunc(s.mesh.opts.Addresses, contains)
}

// candidates are all addresses at which this node may be reached.
func (s *self) candidates() []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.Clone(s.local)
	for _, a := range s.stun.seen() {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list[:min(len(list), maxAddresses)]
}

// moved is called when another relay has become our home.
func (s *self) moved(home string) {
	s.mu.Lock()
	s.home = home
	s.mu.Unlock()
	s.announce()
}

// announce tells soon how this node can be reached, if that has changed.
func (s *self) announce() {
	select {
	case s.changes <- struct{}{}:
	default:
	}
}

func (s *self) tell() {
	now := Announcement{Key: s.mesh.key().Public(), Candidates: s.candidates()}
	s.mu.Lock()
	now.Relay = s.home
	same := s.toldOnce && now.equal(s.told)
	s.told, s.toldOnce = now, true
	s.mu.Unlock()
	if !same && s.mesh.opts.Announce != nil {
		s.mesh.opts.Announce(now)
	}
}

// refresh asks for our public address if that was long ago.
func (s *self) refresh(now time.Time) {
	s.mu.Lock()
	due := now.Sub(s.asked) >= askAgain
	s.mu.Unlock()
	if due {
		s.ask(now)
	}
}

func (s *self) ask(now time.Time) {
	s.mu.Lock()
	s.asked = now
	s.mu.Unlock()
	for to, datagram := range s.stun.requests() {
		s.mesh.sendTo(to, datagram)
	}
}

// sleep reports whether the time has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// searchAll looks for new paths to all busy peers: this node may have moved.
func (m *Mesh) searchAll() {
	for _, p := range m.prober.all() {
		p.mu.Lock()
		p.paths.search(time.Now())
		p.mu.Unlock()
	}
}
