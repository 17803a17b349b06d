package portmap

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"
)

const (
	// wanted is how long a router is asked to keep a mapping. It is renewed after half of what the router grants.
	wanted = 2 * time.Hour
	// shortest and longest bound when a mapping is renewed, whatever the router says.
	shortest, longest = time.Minute, 24 * time.Hour
	// again is how long a router that maps no port is left alone.
	again = 15 * time.Minute
	// patience limits what one protocol takes to answer, and farewell what removing a mapping takes at the end.
	patience = 3 * time.Second
	farewell = time.Second
)

// router is a gateway, and the address by which it knows this machine.
type router struct{ gateway, local netip.Addr }

// mapping is what a router has agreed to.
type mapping struct {
	external netip.AddrPort
	lifetime time.Duration
	nonce    [12]byte // identifies the mapping to PCP
	service  service  // that of UPnP
}

// protocol is one way to ask. Its functions return soon after ctx ends.
type protocol struct {
	name string
	// add makes or renews a mapping. The old one is zero for the first time.
	add func(ctx context.Context, r router, port uint16, old mapping) (mapping, error)
	// remove ends a mapping.
	remove func(ctx context.Context, r router, port uint16, old mapping) error
}

// allProtocols are tried in this order.
var allProtocols = []protocol{
	{"PCP", addPCP, removePCP},
	{"NAT-PMP", addNATPMP, removeNATPMP},
	{"UPnP", addUPnP, removeUPnP},
}

// Mapper keeps a UDP port mapped.
type Mapper struct {
	port    func() uint16
	changed func()
	log     *slog.Logger
	wake    chan struct{}
	// find and protocols are findRouter and allProtocols, but for tests.
	find      func() (router, error)
	protocols []protocol

	mu     sync.Mutex
	mapped netip.AddrPort
}

// New returns a mapper that does nothing before Run. It calls changed, which must not block, whenever Mapped changes.
func New(port func() uint16, changed func(), log *slog.Logger) *Mapper {
	return &Mapper{port: port, changed: changed, log: log, wake: make(chan struct{}, 1), find: findRouter, protocols: allProtocols}
}

// Mapped is the public address that leads to the port; invalid if there is none.
func (m *Mapper) Mapped() netip.AddrPort {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mapped
}

// Moved says that this machine may be in another network.
func (m *Mapper) Moved() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Run keeps the port mapped until ctx ends, and then removes the mapping. Without a router that answers, it does
// nothing for a while and then asks again.
func (m *Mapper) Run(ctx context.Context) {
	var held lease
	for ctx.Err() == nil {
		held = m.renew(ctx, held)
		m.set(held.external)
		pause := again
		if held.external.IsValid() {
			pause = min(max(held.lifetime/2, shortest), longest)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-m.wake:
		}
		timer.Stop()
	}
	if held.external.IsValid() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if err := held.with.remove(ctx, held.router, held.port, held.mapping); err != nil {
			m.log.Debug("the router keeps the mapping of the port until it expires", "error", err)
		}
		m.set(netip.AddrPort{})
	}
}

// lease is a mapping, and how it came about.
type lease struct {
	mapping
	with   protocol
	router router
	port   uint16
}

// renew renews a mapping, or makes a new one if this machine has moved.
func (m *Mapper) renew(ctx context.Context, held lease) lease {
	r, err := m.find()
	if err != nil {
		m.log.Debug("no router is asked for a port", "reason", err)
		return lease{}
	}
	port := m.port()
	tried := m.protocols
	if held.router == r && held.port == port && held.external.IsValid() {
		tried = []protocol{held.with}
	} else {
		held = lease{}
	}
	var errs []error
	for _, with := range tried {
		trying, cancel := context.WithTimeout(ctx, patience)
		made, err := with.add(trying, r, port, held.mapping)
		cancel()
		if err == nil && !reachable(made.external) {
			err = errors.New("the router's own address is private: it is behind another NAT")
		}
		if err == nil {
			return lease{made, with, r, port}
		}
		errs = append(errs, errors.New(with.name+": "+err.Error()))
	}
	m.log.Debug("the router maps no port", "router", r.gateway, "error", errors.Join(errs...))
	return lease{}
}

// reachable reports whether an address may lead here from the internet.
func reachable(a netip.AddrPort) bool {
	return a.Port() != 0 && a.Addr().Is4() && a.Addr().IsGlobalUnicast() && !behindNAT(a.Addr())
}

func (m *Mapper) set(a netip.AddrPort) {
	m.mu.Lock()
	same := m.mapped == a
	m.mapped = a
	m.mu.Unlock()
	if !same {
		m.changed()
	}
}

// shared are the addresses that providers use behind their own NATs.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// behindNAT reports whether an address is one that NATs translate.
func behindNAT(a netip.Addr) bool { return a.IsPrivate() || shared.Contains(a) }

// lifetimeOf is what a router grants, bounded. Routers that say nothing keep a mapping as long as they run.
func lifetimeOf(seconds uint32) time.Duration {
	return min(time.Duration(cmp.Or(seconds, uint32(wanted/time.Second)))*time.Second, 2*longest)
}
