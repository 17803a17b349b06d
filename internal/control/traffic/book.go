package traffic

import (
	"context"
	"sync"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/routes"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/trafficstat"
)

const (
	// Stale is how long a node may be silent before what it counts is unknown. Nodes that answer for a route report more
	// often, even if there is nothing new.
	Stale = 15 * time.Second
	// shown is the time of the figures of a route.
	shown = time.Minute
	// maxKeys bounds what nodes may make the leader remember.
	maxKeys = 200_000
	// tidyEvery is how often what is gone is forgotten.
	tidyEvery = time.Minute
)

// Book has what nodes have reported. It is safe for concurrent use, and does not block.
type Book struct {
	store *state.Store
	began time.Time

	mu     sync.Mutex
	nodes  map[string]*node // by uid, those that have a session
	series map[key]*series
	// byRoute, byService and byRevision are the same series.
	byRoute, byService, byRevision map[string]map[key]*series
	totals                         map[string]*total // by route
	// heard caches from when on all nodes were heard that two selectors choose.
	heard   map[selectors]time.Duration
	heardAt time.Duration
}

// node is what is known of a node with a session.
type node struct {
	since, last time.Duration
	ports       map[port]string // problems; nil before the node has said anything about ports
	open        map[key]int64
}

type port struct {
	protocol string
	number   int32
}

// total is everything that was counted of a route.
type total struct{ sums }

// New returns a book in which nothing was written.
func New(store *state.Store) *Book {
	b := &Book{store: store, began: time.Now()}
	b.clear()
	return b
}

func (b *Book) clear() {
	b.nodes, b.series, b.totals = map[string]*node{}, map[key]*series{}, map[string]*total{}
	b.byRoute, b.byService, b.byRevision = map[string]map[key]*series{}, map[string]map[key]*series{}, map[string]map[key]*series{}
	b.heard = nil
}

func (b *Book) now() time.Duration { return time.Since(b.began) }

// Began says that a node has a session: what it measured before may be lost.
func (b *Book) Began(uid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes[uid] = &node{since: b.now(), last: b.now(), open: map[key]int64{}}
	b.heard = nil
}

// Ended says that a node has no session any more.
func (b *Book) Ended(uid string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.nodes, uid)
	b.heard = nil
}

// Reported writes down what a node reports. What it says of objects that do not exist is left out.
func (b *Book) Reported(uid string, up *v1.IngressUp) {
	snap := b.store.Snapshot()
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	n := b.nodes[uid]
	if n == nil || now-n.last > Stale {
		n = &node{since: now, open: map[key]int64{}}
		b.nodes[uid], b.heard = n, nil
	}
	n.last = now
	if up.GetPortsSet() {
		if n.ports == nil {
			b.heard = nil
		}
		n.ports = map[port]string{}
		for _, p := range up.GetPorts() {
			n.ports[port{p.GetProtocol(), p.GetPort()}] = p.GetProblem()
		}
	}
	for _, sample := range up.GetTraffic() {
		b.write(now, snap, n, sample)
	}
}

func (b *Book) write(now time.Duration, snap *state.Snapshot, n *node, sample *v1.TrafficSample) {
	k := key{sample.GetRouteUid(), sample.GetServiceUid(), sample.GetRevisionUid()}
	if snap.Route(k.route) == nil {
		return
	}
	if k.service != "" && snap.Service(k.service) == nil {
		k.service = ""
	}
	if k.revision != "" && snap.Revision(k.revision) == nil {
		k.revision = ""
	}
	if sample.GetOpen() > 0 {
		n.open[k] = sample.GetOpen()
	} else {
		delete(n.open, k)
	}
	s := b.series[k]
	if s == nil {
		if len(b.series) >= maxKeys {
			return
		}
		s = newSeries()
		b.series[k] = s
		index(b.byRoute, k.route, k, s)
		index(b.byService, k.service, k, s)
		index(b.byRevision, k.revision, k, s)
	}
	c, l := countsOf(sample), latenciesOf(sample.GetLatencies())
	s.add(now, c, l)
	if b.totals[k.route] == nil {
		b.totals[k.route] = &total{}
	}
	b.totals[k.route].add(c)
	l.addTo(&b.totals[k.route].latencies)
}

func index(by map[string]map[key]*series, uid string, k key, s *series) {
	if uid == "" {
		return
	}
	if by[uid] == nil {
		by[uid] = map[key]*series{}
	}
	by[uid][k] = s
}

func (b *Book) forget(k key) {
	delete(b.series, k)
	unindex(b.byRoute, k.route, k)
	unindex(b.byService, k.service, k)
	unindex(b.byRevision, k.revision, k)
}

func unindex(by map[string]map[key]*series, uid string, k key) {
	delete(by[uid], k)
	if len(by[uid]) == 0 {
		delete(by, uid)
	}
}

// Run forgets what is gone until ctx ends, and then everything: the next leadership begins with nothing.
func (b *Book) Run(ctx context.Context) error {
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.clear()
	}()
	ticker := time.NewTicker(tidyEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			b.tidy(b.store.Snapshot())
		}
	}
}

// tidy forgets routes, nodes, services and revisions that are gone, and what was counted too long ago.
func (b *Book) tidy(snap *state.Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, oldest := b.now(), countLevels[len(countLevels)-1].age
	for k, s := range b.series {
		gone := snap.Route(k.route) == nil || k.service != "" && snap.Service(k.service) == nil || k.revision != "" && snap.Revision(k.revision) == nil
		if gone || now-s.last > oldest {
			b.forget(k)
		}
	}
	for route := range b.totals {
		if snap.Route(route) == nil {
			delete(b.totals, route)
		}
	}
	for uid, n := range b.nodes {
		if snap.Node(uid) == nil {
			delete(b.nodes, uid)
		}
		for k := range n.open {
			if b.series[k] == nil {
				delete(n.open, k)
			}
		}
	}
}

// Port says whether a node has a port open: known is false if the node has not tried to open it, or has not said so.
func (b *Book) Port(nodeUID, protocol string, number int32) (problem string, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := b.nodes[nodeUID]; n != nil {
		problem, known = n.ports[port{protocol, number}]
	}
	return problem, known
}

// Requests is how many requests a second a service got within the last so long. A service whose connections are open is in
// use, even if there were no new ones. known is false if they were not counted for the whole time, or if no route leads to
// the service.
func (b *Book) Requests(serviceUID string, within time.Duration) (perSecond float64, known bool) {
	snap := b.store.Snapshot()
	service := snap.Service(serviceUID)
	if service == nil || within <= 0 {
		return 0, false
	}
	leading := routes.LeadsTo(snap, service)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, r := range leading {
		since, all := b.heardSince(now, snap, r)
		if !all || now-since < within {
			return 0, false
		}
	}
	if len(leading) == 0 {
		return 0, false
	}
	var sum sums
	from := (now - within).Truncate(countLevels[0].width) // the whole second in which it begins is counted
	for _, s := range b.byService[serviceUID] {
		s.counts.since(from, sum.add)
	}
	requests := sum.requests
	if requests == 0 {
		for _, n := range b.nodes {
			for k, open := range n.open {
				if k.service == serviceUID {
					requests += open
				}
			}
		}
	}
	return float64(requests) / (now - from).Seconds(), true
}

// selectors choose the nodes that answer for a route.
type selectors struct{ cluster, route string }

// heardCache is how long it is remembered from when on nodes were heard.
const heardCache = time.Second

// heardSince is since when all nodes are heard that answer for a route. It is false if one of them is not, or if there is
// none. The caller holds the lock.
func (b *Book) heardSince(now time.Duration, snap *state.Snapshot, r *v1.Route) (since time.Duration, all bool) {
	if b.heard == nil || now-b.heardAt > heardCache {
		b.heard, b.heardAt = map[selectors]time.Duration{}, now
	}
	by := selectors{snap.Cluster().GetSpec().GetIngress().GetNodes(), r.GetSpec().GetNodes()}
	since, known := b.heard[by]
	if !known {
		since = b.listen(now, snap, r)
		b.heard[by] = since
	}
	return since, since >= 0
}

// listen returns -1 if a node that answers for a route is not heard, or if none answers.
func (b *Book) listen(now time.Duration, snap *state.Snapshot, r *v1.Route) time.Duration {
	since := time.Duration(-1)
	for n := range routes.Answering(snap, r) {
		one := b.nodes[n.GetMetadata().GetUid()]
		if one == nil || one.ports == nil || now-one.last > Stale {
			return -1
		}
		since = max(since, one.since)
	}
	return since
}

// Revision is what a revision has answered since a time: how many requests, how many of them failed, and how long 99 of 100
// took. Times long ago are known to the minute.
func (b *Book) Revision(uid string, since time.Time) (requests, errors uint64, p99 time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var sum sums
	for _, s := range b.byRevision[uid] {
		s.since(b.now()-time.Since(since), &sum)
	}
	return uint64(sum.requests), uint64(sum.errors), sum.latencies.Quantile(0.99)
}

// seconds are the sum of latencies, as far as their buckets tell it.
func seconds(of trafficstat.Counts) (sum float64) {
	for bucket, n := range of {
		from, to := trafficstat.Bounds(bucket)
		sum += float64(n) * (from + to).Seconds() / 2
	}
	return sum
}
