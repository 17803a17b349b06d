package mesh

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cloudless/cloudless/internal/mesh/relay"
	"github.com/cloudless/cloudless/internal/sleep"
)

// Relay is a server that passes packets on.
type Relay struct {
	ID string
	// Address is that of its TLS port, such as 192.0.2.1:7443.
	Address string
}

const (
	// compareRelays is how often the nearest relay is looked for.
	compareRelays = 30 * time.Minute
	// measuring is how long relays have to answer before the nearest of them is chosen.
	measuring = 3 * time.Second
	// unusedAfter is how long a connection to a relay that is not ours is kept without a packet.
	unusedAfter = time.Minute
	// absentFor is how long a relay is not asked again for a peer that is not there.
	absentFor = 10 * time.Second
	// relayPatience is how long a relay has to answer after the machine's addresses have changed.
	relayPatience = 2 * time.Second
	dialTimeout   = 10 * time.Second
	// Attempts to connect wait for minBackoff first, and then for twice as long each time, up to maxBackoff.
	minBackoff = 500 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// relays are the connections to relays. One of them is our home: peers send there what is for us.
type relays struct {
	dial    func(context.Context, Relay) (net.Conn, error)
	receive func(from relay.Address, packet []byte, together *relayedPackets)
	deliver func(*relayedPackets)
	// changed is called when our home changes, and connected when a connection is up.
	changed   func(home string)
	connected func()
	absent    func(peer relay.Address, id string)
	log       *slog.Logger

	changes chan struct{}
	tasks   sync.WaitGroup

	mu    sync.Mutex
	ctx   context.Context // that of run; nil before it
	list  []Relay
	links map[string]*relayLink
	home  string
}

// relayLink is the connection to one relay, or the attempt to have one.
type relayLink struct {
	relay    Relay
	cancel   context.CancelFunc
	client   *relay.Client // nil until it is connected
	conn     net.Conn      // that of the client
	lastSent time.Time
	// redial ends an attempt to connect that is under way, or the wait for the next one. The next one follows at once.
	redial context.CancelFunc
}

// set replaces the list of relays.
func (r *relays) set(list []Relay) {
	r.mu.Lock()
	r.list = slices.Clone(list)
	for id, l := range r.links {
		if !slices.Contains(list, l.relay) {
			l.cancel()
			delete(r.links, id)
		}
	}
	r.mu.Unlock()
	r.wake()
}

func (r *relays) wake() {
	select {
	case r.changes <- struct{}{}:
	default:
	}
}

// run keeps a connection to the nearest relay until ctx ends.
func (r *relays) run(ctx context.Context) {
	r.mu.Lock()
	r.ctx = ctx
	r.mu.Unlock()
	defer r.tasks.Wait()
	unused := time.NewTicker(unusedAfter) // changes do not put it off
	defer unused.Stop()
	for {
		r.findHome(ctx)
		timer := time.NewTimer(compareRelays)
		again := false
		for !again {
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C:
				again = true
			case <-r.changes:
				again = !r.homeWorks()
			case <-unused.C:
				r.closeUnused()
			}
		}
		timer.Stop()
	}
}

func (r *relays) homeWorks() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.links[r.home]
	return l != nil && l.client != nil
}

// findHome connects to all relays and stays with the nearest.
func (r *relays) findHome(ctx context.Context) {
	r.mu.Lock()
	for _, one := range r.list {
		r.link(one)
	}
	count := len(r.list)
	r.mu.Unlock()
	if count == 0 {
		return
	}
	deadline := time.NewTimer(measuring)
	defer deadline.Stop()
	for {
		nearest, measured := r.nearest()
		if measured == count {
			r.moveTo(nearest)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-deadline.C:
			r.moveTo(nearest)
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// nearest is the relay that answered fastest, and how many did.
func (r *relays) nearest() (id string, measured int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var best time.Duration
	for _, one := range r.list {
		l := r.links[one.ID]
		if l == nil || l.client == nil || l.client.RoundTrip() == 0 {
			continue
		}
		measured++
		trip := l.client.RoundTrip()
		if one.ID == r.home {
			trip = trip * 2 / 3 // moving has its cost
		}
		if id == "" || trip < best {
			id, best = one.ID, trip
		}
	}
	return id, measured
}

func (r *relays) moveTo(id string) {
	r.mu.Lock()
	moved := id != "" && id != r.home
	if moved {
		r.home = id
	}
	r.mu.Unlock()
	if moved {
		r.changed(id)
	}
}

// closeUnused closes connections that nothing was sent through for a while.
func (r *relays) closeUnused() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, l := range r.links {
		if id != r.home && time.Since(l.lastSent) > unusedAfter {
			l.cancel()
			delete(r.links, id)
		}
	}
}

// link returns the connection to a relay, and begins to make one if there is none. The caller holds mu.
func (r *relays) link(one Relay) *relayLink {
	if l := r.links[one.ID]; l != nil {
		return l
	}
	if r.ctx == nil || r.ctx.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithCancel(r.ctx)
	l := &relayLink{relay: one, cancel: cancel, lastSent: time.Now()}
	r.links[one.ID] = l
	r.tasks.Go(func() {
		defer cancel()
		r.keep(ctx, l)
	})
	return l
}

// keep connects to a relay again and again until ctx ends.
func (r *relays) keep(ctx context.Context, l *relayLink) {
	backoff := minBackoff
	for ctx.Err() == nil {
		attempt, redial := context.WithCancel(ctx)
		r.mu.Lock()
		l.redial = redial
		r.mu.Unlock()
		worked, err := r.connect(ctx, attempt, l)
		if ctx.Err() != nil {
			redial()
			return
		}
		r.log.Debug("no connection to a relay", "relay", l.relay.Address, "error", err)
		r.wake()
		if worked || attempt.Err() != nil { // attempts made before tell nothing about the next one
			backoff = minBackoff
		}
		if sleep.For(attempt, backoff) == nil {
			backoff = min(2*backoff, maxBackoff)
		}
		redial()
	}
}

// connect relays until the connection ends. It worked if the relay has answered. attempt bounds only the dialing.
func (r *relays) connect(ctx, attempt context.Context, l *relayLink) (worked bool, err error) {
	dialing, cancel := context.WithTimeout(attempt, dialTimeout)
	defer cancel()
	conn, err := r.dial(dialing, l.relay)
	if err != nil {
		return false, err
	}
	client := relay.NewClient(conn, &relayHandler{relays: r, id: l.relay.ID, together: newRelayedPackets()})
	r.setClient(l, client, conn)
	defer r.setClient(l, nil, nil)
	r.tasks.Go(r.connected)
	err = client.Run(ctx)
	return client.RoundTrip() > 0, err
}

func (r *relays) setClient(l *relayLink, c *relay.Client, conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.client, l.conn = c, conn
}

// moved is called when the machine's addresses have changed. Connections from addresses that it no longer has end at
// once. Others may be cut off as well: they end if their relay does not answer soon. All are made again without delay.
func (r *relays) moved(lost []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.links {
		switch {
		case l.client == nil:
			if l.redial != nil {
				l.redial()
			}
		case slices.Contains(lost, addressOf(l.conn.LocalAddr())):
			_ = l.conn.Close()
			l.redial()
		default:
			l.client.Verify(relayPatience)
		}
	}
}

// addressOf is the IP address of one end of a connection, invalid if there is none.
func addressOf(a net.Addr) netip.Addr {
	if a, ok := a.(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// relayHandler handles what one relay sends.
type relayHandler struct {
	relays *relays
	id     string
	// together are packets that have arrived since the last Flush.
	together *relayedPackets
}

func (h *relayHandler) Packet(from relay.Address, packet []byte) {
	h.relays.receive(from, packet, h.together)
}

func (h *relayHandler) Flush() {
	if len(h.together.sizes) > 0 {
		h.relays.deliver(h.together)
		h.together = newRelayedPackets()
	}
}

func (h *relayHandler) Absent(peer relay.Address) { h.relays.absent(peer, h.id) }

// send sends packets to a peer, through the relay that it is connected to. It reports whether a relay took them.
func (r *relays) send(p *peer, buffers [][]byte, offset int) bool {
	client := r.clientFor(p)
	if client == nil {
		return false
	}
	return client.Send(p.address, buffers, offset) > 0
}

// clientFor returns a connection to the peer's relay, or else to ours or another one where the peer may be.
func (r *relays) clientFor(p *peer) *relay.Client {
	p.mu.Lock()
	theirs, absent := p.config.Relay, p.absent
	p.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if client := r.usable(theirs, absent); client != nil {
		return client
	}
	if client := r.usable(r.home, absent); client != nil {
		return client
	}
	for _, one := range r.list {
		if client := r.usable(one.ID, absent); client != nil {
			return client
		}
	}
	return r.usable(theirs, nil) // the peer may be back
}

// usable returns the connection to a relay, unless it has said that the peer is not there. It begins to make one that
// is missing. The caller holds mu.
func (r *relays) usable(id string, absent map[string]time.Time) *relay.Client {
	if until, ok := absent[id]; ok && time.Now().Before(until) {
		return nil
	}
	l := r.links[id]
	if l == nil {
		if i := slices.IndexFunc(r.list, func(one Relay) bool { return one.ID == id }); i >= 0 {
			l = r.link(r.list[i])
		}
	}
	if l == nil || l.client == nil {
		return nil
	}
	l.lastSent = time.Now()
	return l.client
}

// state is what the relays look like from here.
func (r *relays) state() (list []RelayStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.list {
		s := RelayStatus{ID: one.ID, Address: one.Address, Home: one.ID == r.home}
		if l := r.links[one.ID]; l != nil && l.client != nil {
			s.Connected, s.RoundTrip = true, l.client.RoundTrip()
		}
		list = append(list, s)
	}
	return list
}
