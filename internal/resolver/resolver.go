package resolver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/cloudless/cloudless/internal/resolvconf"
)

// upstreamPort is the port of the name servers in resolv.conf.
const upstreamPort = 53

// Options are what a resolver is made with.
type Options struct {
	Log *slog.Logger
	// ResolvConf are the files that name the upstreams, usually resolvconf.Paths. Run follows them. If there are
	// none, only SetUpstreams names upstreams.
	ResolvConf []string
	// Listening is called when an address is served and when it cannot be, with the reason. The resolver tries
	// again by itself. It may be nil.
	Listening func(address netip.AddrPort, err error)
	// Fetch is called when the machine itself looks up a service that the resolver does not have. It returns when
	// Update has added the service or it is known not to exist; an error fails the lookup. It may be nil.
	Fetch func(ctx context.Context, name Name) error
	// Learn is called before a replica gets the addresses of a name that its rules allow. It returns when the replica may
	// connect to them; an error fails the lookup. It may be nil.
	Learn func(list []Learned) error
}

// Resolver answers the queries of a node's replicas.
type Resolver struct {
	log       *slog.Logger
	files     []string
	listening func(netip.AddrPort, error)
	fetch     func(context.Context, Name) error
	learn     func([]Learned) error
	began     time.Time

	zone      zone
	clients   *clients
	ranges    atomic.Pointer[[]netip.Prefix]
	cache     *cache
	flights   flights
	admission admission
	pool      *pool
	exchange  func(context.Context, *query) (*dns.Msg, error)
	counters  counters

	ctx        context.Context // of queries to upstreams, which outlive the query that caused them
	cancel     context.CancelFunc
	background sync.WaitGroup
	conns      atomic.Int32

	mu        sync.Mutex
	listen    []netip.AddrPort
	upstreams []netip.AddrPort
	kick      chan struct{}
}

// New makes a resolver that knows nothing and does not listen yet.
func New(o Options) (*Resolver, error) {
	if o.Log == nil {
		return nil, errors.New("make a resolver: it needs a logger")
	}
	r := &Resolver{
		log: o.Log, files: o.ResolvConf, listening: o.Listening, fetch: o.Fetch, learn: o.Learn, began: time.Now(),
		clients: newClients(), cache: newCache(), pool: &pool{ask: ask},
		flights: flights{waiting: map[string][]func(packed){}}, kick: make(chan struct{}, 1),
	}
	if r.listening == nil {
		r.listening = func(netip.AddrPort, error) {}
	}
	r.exchange = r.pool.exchange
	r.zone.reset()
	r.ranges.Store(&[]netip.Prefix{})
	r.ctx, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// Replace makes these all the services that there are.
func (r *Resolver) Replace(all []Service) { r.zone.replace(all) }

// Update adds or replaces services, and removes others.
func (r *Resolver) Update(changed []Service, removed []Name) { r.zone.update(changed, removed) }

// SetClients names the replicas by their addresses, and the rules for names by their names. No other client is served,
// apart from the machine itself, which sees everything.
func (r *Resolver) SetClients(all map[netip.Addr]Client, rules map[string][]NameRule) {
	r.clients.set(all, rules)
}

// SetRanges names the ranges of the cluster's addresses. Their reverse names are never forwarded.
func (r *Resolver) SetRanges(ranges []netip.Prefix) {
	own := make([]netip.Prefix, len(ranges))
	for i, p := range ranges {
		own[i] = p.Masked()
	}
	r.ranges.Store(&own)
}

// SetListen says where to listen, on UDP and TCP. An address need not exist yet.
func (r *Resolver) SetListen(addresses []netip.AddrPort) error {
	own := map[netip.Addr]bool{}
	for _, a := range addresses {
		if !a.Addr().IsValid() || a.Addr().IsUnspecified() {
			return fmt.Errorf("listen on %v: name one address; answers must come from the address that was asked", a)
		}
		own[a.Addr()] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listen = slices.Clone(addresses)
	r.clients.own.Store(&own)
	r.zone.setSelf(slices.SortedFunc(maps.Keys(own), netip.Addr.Compare))
	r.readFiles()
	r.useUpstreams()
	r.poke()
	return nil
}

// SetUpstreams says to which name servers other names are forwarded, the preferred one first. The resolver's own
// addresses are left out.
func (r *Resolver) SetUpstreams(upstreams []netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstreams = slices.Clone(upstreams)
	r.useUpstreams()
}

// useUpstreams avoids loops. Other upstreams may give other answers, so the cache is cleared.
func (r *Resolver) useUpstreams() {
	var use []netip.AddrPort
	for _, u := range r.upstreams {
		if !slices.Contains(r.listen, u) && !slices.Contains(use, u) {
			use = append(use, u)
		}
	}
	if r.pool.set(use) {
		r.cache.clear()
	}
}

func (r *Resolver) poke() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// Run serves until ctx ends. It can be called once.
func (r *Resolver) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	if len(r.files) > 0 {
		parts.Go(func() { r.followFiles(ctx) })
	}
	r.serve(ctx)
	r.cancel()
	parts.Wait()
	r.background.Wait()
	return nil
}

// followFiles takes the upstreams from the machine's files. If those cannot be watched, they are read once.
func (r *Resolver) followFiles(ctx context.Context) {
	read := func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.readFiles()
		r.useUpstreams()
	}
	if err := resolvconf.Watch(ctx, r.files, read); err != nil {
		r.log.Warn("changes of the machine's name servers are not followed", "error", err)
		read()
	}
}

func (r *Resolver) readFiles() {
	if len(r.files) == 0 {
		return
	}
	r.upstreams = nil
	for _, address := range resolvconf.Read(r.files, slices.Collect(maps.Keys(*r.clients.own.Load()))...).Servers {
		r.upstreams = append(r.upstreams, netip.AddrPortFrom(address, upstreamPort))
	}
}
