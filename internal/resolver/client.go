package resolver

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// What one client may do. Queries beyond its rate are dropped before they are parsed, which costs next to nothing.
const (
	queriesPerSecond = 20_000
	queryBurst       = 2 * time.Second // worth of queries
)

// Client is a replica as the resolver needs to know it.
type Client struct {
	Namespace string
	// Addresses are all those of the replica, and Rules the name of the rules by which it may connect to names; empty if
	// it may connect to addresses whether or not it has looked them up. They are for Options.Learn.
	Addresses []netip.Addr `json:",omitempty"`
	Rules     string       `json:",omitempty"`
}

// client is a replica, the machine itself, or neither.
type client struct {
	view
	learns   atomic.Pointer[learning] // nil if nothing is learned for it
	stranger bool
	budget   budget
	waiting  int // for upstreams; guarded by admission.mu
	conns    atomic.Int32
}

// clients knows which client an address belongs to.
type clients struct {
	mu       sync.Mutex
	replicas atomic.Pointer[map[netip.Addr]*client]
	own      atomic.Pointer[map[netip.Addr]bool] // the addresses that the resolver listens on
	host     *client
	stranger *client
}

func newClients() *clients {
	c := &clients{host: &client{view: view{host: true}}, stranger: &client{stranger: true}}
	c.replicas.Store(&map[netip.Addr]*client{})
	c.own.Store(&map[netip.Addr]bool{})
	return c
}

// set replaces the replicas. One that stays keeps its budget and what was learned for it.
func (c *clients) set(given map[netip.Addr]Client, rules map[string][]NameRule) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, after := *c.replicas.Load(), make(map[netip.Addr]*client, len(given))
	for address, one := range given {
		address = address.Unmap().WithZone("")
		known := before[address]
		if known == nil || known.namespace != one.Namespace {
			known = &client{view: view{namespace: one.Namespace}}
		}
		known.learn(one, rules[one.Rules])
		after[address] = known
	}
	c.replicas.Store(&after)
}

// of returns the client at an address. The kernel gives programs on this machine the address that they send to, or
// one of the loopback.
func (c *clients) of(address netip.Addr) *client {
	address = address.Unmap().WithZone("")
	if known := (*c.replicas.Load())[address]; known != nil {
		return known
	}
	if address.IsLoopback() || (*c.own.Load())[address] {
		return c.host
	}
	return c.stranger
}

// budget limits a rate without a lock: it holds the time until which queries are paid for.
type budget struct{ paid atomic.Int64 }

// take pays for a query, if the budget allows it. now is the time since the resolver was made.
func (b *budget) take(now time.Duration) bool {
	const price = int64(time.Second / queriesPerSecond)
	for {
		paid := b.paid.Load()
		next := max(paid, int64(now)) + price
		if next-int64(now) > int64(queryBurst) {
			return false
		}
		if b.paid.CompareAndSwap(paid, next) {
			return true
		}
	}
}

// admission bounds how many queries wait for upstreams. A client may have a few in any case, and as many as a
// quarter of what is free: one greedy client gets a fifth of all, and many share evenly.
type admission struct {
	mu    sync.Mutex
	total int
}

const (
	maxWaiting  = 1024
	greedyShare = 4
	alwaysFree  = 4
)

func (a *admission) enter(c *client) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.waiting >= max(alwaysFree, (maxWaiting-a.total)/greedyShare) {
		return false
	}
	c.waiting++
	a.total++
	return true
}

func (a *admission) leave(c *client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.waiting--
	a.total--
}
