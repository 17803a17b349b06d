package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailscale/wireguard-go/conn"
	"github.com/tailscale/wireguard-go/device"
	"github.com/tailscale/wireguard-go/tun"

	"github.com/cloudless/cloudless/internal/mesh/relay"
)

// Setup is what cannot change while a node takes part in the mesh.
type Setup struct {
	// ID is this node's identity to relays, and Credentials the file that proves it.
	ID, Credentials string
	// Interface is the name of the TUN device.
	Interface string
	// MTU is the size of the largest packet in the mesh; see MTUFor.
	MTU int
	// Port is the UDP port. If another program has it, any other port is used.
	Port uint16
	// Addresses are the node's own addresses on the interface.
	Addresses []netip.Prefix
	// Ranges are those of the cluster. No machine is reached directly at an address in them.
	Ranges []netip.Prefix
}

// Equal reports whether two setups are the same.
func (s Setup) Equal(t Setup) bool {
	return s.ID == t.ID && s.Credentials == t.Credentials && s.Interface == t.Interface && s.MTU == t.MTU && s.Port == t.Port &&
		slices.Equal(s.Addresses, t.Addresses) && slices.Equal(s.Ranges, t.Ranges)
}

// Options say how a node takes part in the mesh.
type Options struct {
	Setup
	Key PrivateKey
	// Dial connects to a relay and proves who this node is.
	Dial func(context.Context, Relay) (net.Conn, error)
	// Announce receives how this node can be reached, whenever that changes. It must not block.
	Announce func(Announcement)
	Logger   *slog.Logger
}

// Announcement is how a node can be reached. Its peers need to know it.
type Announcement struct {
	Key        Key
	Candidates []netip.AddrPort
	Relay      string
}

func (a Announcement) equal(b Announcement) bool {
	return a.Key == b.Key && a.Relay == b.Relay && slices.Equal(a.Candidates, b.Candidates)
}

// Mesh is a node's part of the mesh.
type Mesh struct {
	opts    Options
	log     *slog.Logger
	started time.Time

	tun    *tunnel
	device *device.Device
	bind   *bind
	relays *relays
	prober *prober
	self   *self
	port   atomic.Uint32
	tasks  sync.WaitGroup // what WireGuard must not wait for

	// sources are the addresses that authentic probes of peers came from. The map is replaced, never changed.
	sources atomic.Pointer[map[netip.AddrPort]*peer]

	// secret has no lock, so that it can be read while a peer is locked: mu comes before the lock of a peer.
	secret atomic.Pointer[PrivateKey]

	mu    sync.RWMutex
	byID  map[string]*peer
	byKey map[Key]*peer
	// bySender and byAddress are how probes and relays name peers.
	bySender  map[senderID]*peer
	byAddress map[relay.Address]*peer
	behind    prefixes
	// former is what was counted for peers that are gone.
	former Totals
}

// Open creates the interface and joins the mesh, without peers. Run must be called, and then Close.
func Open(opts Options) (*Mesh, error) {
	link, err := openTunnel(opts.Interface, opts.MTU)
	if err != nil {
		return nil, err
	}
	m, err := open(opts, link)
	if err != nil {
		return nil, errors.Join(err, link.Close())
	}
	return m, nil
}

func open(opts Options, link *tunnel) (*Mesh, error) {
	m := &Mesh{
		opts: opts, log: opts.Logger, started: time.Now(), tun: link,
		byID: map[string]*peer{}, byKey: map[Key]*peer{}, bySender: map[senderID]*peer{}, byAddress: map[relay.Address]*peer{},
	}
	m.secret.Store(&opts.Key)
	m.sources.Store(&map[netip.AddrPort]*peer{})
	m.bind, m.prober, m.self = newBind(m), newProber(m), newSelf(m)
	m.relays = &relays{
		dial: opts.Dial, receive: m.bind.fromRelay, deliver: m.bind.deliver, changed: m.self.moved, connected: m.releaseHeld, absent: m.absentAt,
		log: m.log, changes: make(chan struct{}, 1), links: map[string]*relayLink{},
	}
	if err := link.configure(opts.Addresses); err != nil {
		return nil, err
	}
	if err := m.addDevice(link, m.bind); err != nil {
		return nil, err
	}
	if err := m.listen(); err != nil {
		return nil, err
	}
	return m, nil
}

// addDevice adds WireGuard between the interface and the network.
func (m *Mesh) addDevice(link tun.Device, network conn.Bind) error {
	m.device = device.NewDevice(link, network, quietLogger(m.log))
	m.device.SetPeerLookupFunc(m.lookUp)
	m.device.SetPeerByIPPacketFunc(m.route)
	m.device.SetSessionStateFunc(m.sessionChanged)
	if err := m.device.SetPrivateKey(device.NoisePrivateKey(m.key().Bytes())); err != nil {
		return fmt.Errorf("set the key of the mesh: %w", err)
	}
	return nil
}

// listen opens the wanted port, or any other if it is taken.
func (m *Mesh) listen() error {
	err := m.device.IpcSet(fmt.Sprintf("listen_port=%d\n", m.opts.Port))
	if err == nil {
		err = m.device.Up()
	}
	if err == nil || m.opts.Port == 0 {
		return err
	}
	m.log.Warn("the UDP port of the mesh is taken; another one is used", "port", m.opts.Port, "error", err)
	return errors.Join(m.device.IpcSet("listen_port=0\n"), m.device.Up())
}

// quietLogger passes on WireGuard's errors. Its other messages are for its own developers.
func quietLogger(log *slog.Logger) *device.Logger {
	return &device.Logger{
		Verbosef: func(string, ...any) {},
		Errorf:   func(format string, args ...any) { log.Debug("wireguard: " + fmt.Sprintf(format, args...)) },
	}
}

// Run keeps paths and relays until ctx ends.
func (m *Mesh) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { m.relays.run(ctx) })
	parts.Go(func() { m.prober.run(ctx) })
	parts.Go(func() { m.self.run(ctx) })
	parts.Go(func() { m.self.servers.run(ctx) })
	parts.Go(func() { m.self.ports.Run(ctx) })
	parts.Wait()
	return nil
}

// Close leaves the mesh. The interface stays until RemoveInterface, so that its routes do.
func (m *Mesh) Close() error {
	m.device.Close()
	m.tasks.Wait()
	return nil
}

// Port is the UDP port that the mesh listens on.
func (m *Mesh) Port() uint16 { return uint16(m.port.Load()) }

// clock is the time since the mesh was opened. It does not jump.
func (m *Mesh) clock() int64 { return int64(time.Since(m.started)) }

func (m *Mesh) key() PrivateKey { return *m.secret.Load() }

// SetKey gives this node another key. Peers must learn it from the next announcement.
func (m *Mesh) SetKey(k PrivateKey) error {
	m.secret.Store(&k)
	m.mu.Lock()
	for _, p := range m.byID {
		p.mu.Lock()
		p.seal = nil
		p.mu.Unlock()
	}
	m.mu.Unlock()
	if err := m.device.SetPrivateKey(device.NoisePrivateKey(k.Bytes())); err != nil {
		return fmt.Errorf("set the key of the mesh: %w", err)
	}
	m.self.announce()
	return nil
}

// SetRelays replaces the list of relays. They also tell this node its public address.
func (m *Mesh) SetRelays(list []Relay) {
	m.relays.set(list)
	m.self.setServers(list)
}
