package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/cloudless/cloudless/internal/mesh/portmap"
	"github.com/cloudless/cloudless/internal/sleep"
)

const (
	// askAgain is how often servers are asked for our public address while there is traffic: a NAT forgets an address
	// that is not used.
	askAgain = 25 * time.Second
	// settle is how long addresses may change before the node tells its peers.
	settle = 50 * time.Millisecond
)

// self knows how this node can be reached.
type self struct {
	mesh    *Mesh
	stun    *stunClient
	servers *stunServers
	ports   *portmap.Mapper
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
	s.ports = portmap.New(m.Port, s.announce, m.log)
	s.servers = newSTUNServers(func(found []netip.AddrPort) {
		if s.stun.set(found) {
			s.ask(time.Now())
		}
	})
	return s
}

// setServers says which relays tell this node its public address.
func (s *self) setServers(list []Relay) {
	var addresses []string
	for _, r := range list {
		addresses = append(addresses, r.Address)
	}
	s.servers.set(addresses)
}

// run watches the machine's addresses until ctx ends. It subscribes again when the kernel had more changes than fit into
// a buffer and ended the subscription.
func (s *self) run(ctx context.Context) {
	for ctx.Err() == nil {
		s.watch(ctx)
		_ = sleep.For(ctx, settle) // it ends with ctx
	}
}

// watch follows changes until the subscription or ctx ends.
func (s *self) watch(ctx context.Context) {
	addresses, links, done := make(chan netlink.AddrUpdate), make(chan netlink.LinkUpdate), make(chan struct{})
	defer close(done)
	if err := errors.Join(netlink.AddrSubscribe(addresses, done), netlink.LinkSubscribe(links, done)); err != nil {
		s.mesh.log.Warn("changes of the machine's addresses are not seen", "error", err)
	}
	s.lookAround()
	var look <-chan time.Time // set while a change waits to be looked at
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-addresses:
			if !open {
				return
			}
			look = soon(look)
		case _, open := <-links:
			if !open {
				return
			}
			look = soon(look)
		case <-look:
			look = nil
			s.lookAround()
		case <-s.changes:
			if sleep.For(ctx, settle) != nil {
				return
			}
			s.tell()
		}
	}
}

// soon returns what waits already, so that changes without end do not put it off, or else a new timer.
func soon(waiting <-chan time.Time) <-chan time.Time {
	if waiting != nil {
		return waiting
	}
	return time.After(settle)
}

// lookAround lists the machine's addresses, and asks for the public ones if they have changed.
func (s *self) lookAround() {
	local := s.localAddresses()
	s.mu.Lock()
	before := s.local
	s.local = local
	s.mu.Unlock()
	if !slices.Equal(local, before) {
		var lost []netip.Addr
		for _, a := range before {
			if !slices.Contains(local, a) {
				lost = append(lost, a.Addr())
			}
		}
		if len(lost) > 0 {
			s.stun.forget()
		}
		s.ports.Moved()
		s.servers.lookUpAgain() // the names may lead elsewhere from here
		s.ask(time.Now())
		s.announce()
		s.mesh.relays.moved(lost)
		s.mesh.searchAll()
	}
}

// localAddresses are those of the machine's interfaces that are connected, but for what leads through the mesh itself.
func (s *self) localAddresses() (list []netip.AddrPort) {
	links, err := net.Interfaces()
	if err != nil {
		return nil
	}
	connected := map[int]bool{}
	for _, link := range links {
		connected[link.Index] = link.Flags&net.FlagUp != 0 && link.Flags&net.FlagRunning != 0
	}
	all, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil
	}
	for _, one := range all {
		a, ok := netip.AddrFromSlice(one.IP)
		if a = a.Unmap(); ok && connected[one.LinkIndex] && a.IsGlobalUnicast() && !s.inMesh(a) {
			list = append(list, netip.AddrPortFrom(a, s.mesh.Port()))
		}
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
	// The public ones come first: a machine may have more local addresses than there is room for.
	var list []netip.AddrPort
	for _, a := range slices.Concat(s.stun.seen(), []netip.AddrPort{s.ports.Mapped()}, s.local) {
		if a.IsValid() && !slices.Contains(list, a) {
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

// searchAll looks for new paths to all busy peers: this node may have moved.
func (m *Mesh) searchAll() {
	for _, p := range m.prober.all() {
		p.mu.Lock()
		p.paths.search(time.Now())
		p.mu.Unlock()
	}
}
