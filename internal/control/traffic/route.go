package traffic

import (
	"cmp"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/telemetry"
	"github.com/cloudless/cloudless/internal/trafficstat"
)

// Route is the traffic of a route within the last minute, nil if no node has reported anything about routes.
func (b *Book) Route(uid string) *v1.RouteTraffic {
	snap := b.store.Snapshot()
	b.mu.Lock()
	defer b.mu.Unlock()
	now, counting := b.now(), time.Duration(-1)
	for _, n := range b.nodes {
		if n.ports != nil {
			counting = max(counting, now-n.since)
		}
	}
	if counting < 0 {
		return nil
	}
	span := min(max(counting, time.Second), shown).Seconds()
	var all sums
	backends := map[backend]*sums{}
	for k, s := range b.byRoute[uid] {
		var one sums
		s.since(now-shown, &one)
		all.merge(one)
		if service := snap.Service(k.service); service != nil && one.requests > 0 {
			of := backend{service.GetMetadata().GetName(), snap.Revision(k.revision).GetSpec().GetNumber()}
			if backends[of] == nil {
				backends[of] = &sums{}
			}
			backends[of].merge(one)
		}
	}
	traffic := &v1.RouteTraffic{
		Requests: float64(all.requests) / span, ErrorRate: all.errorRate(), P50: milliseconds(all.latencies.Quantile(0.5)),
		P99: milliseconds(all.latencies.Quantile(0.99)), Open: b.openOf(uid), Received: float64(all.received) / span, Sent: float64(all.sent) / span,
	}
	for of, one := range backends {
		traffic.Backends = append(traffic.Backends, &v1.BackendTraffic{
			Service: of.service, Revision: of.revision, Requests: float64(one.requests) / span, ErrorRate: one.errorRate(),
			P99: milliseconds(one.latencies.Quantile(0.99)),
		})
	}
	slices.SortFunc(traffic.Backends, func(x, y *v1.BackendTraffic) int {
		return cmp.Or(cmp.Compare(x.GetService(), y.GetService()), cmp.Compare(x.GetRevision(), y.GetRevision()))
	})
	return traffic
}

// backend is where requests of a route went.
type backend struct {
	service  string
	revision uint64
}

// openOf is how many requests and connections of a route are open. The caller holds the lock.
func (b *Book) openOf(route string) (open int64) {
	for _, n := range b.nodes {
		for k, of := range n.open {
			if k.route == route {
				open += of
			}
		}
	}
	return open
}

func (s *sums) merge(other sums) {
	s.add(other.counts)
	s.latencies.Merge(other.latencies)
}

func (s *sums) errorRate() float64 {
	if s.requests == 0 {
		return 0
	}
	return float64(s.errors) / float64(s.requests)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Figures emits what was counted of every route since this server leads.
func (b *Book) Figures(emit func(telemetry.RouteFigures)) {
	snap := b.store.Snapshot()
	b.mu.Lock()
	defer b.mu.Unlock()
	open := map[string]int64{}
	for _, n := range b.nodes {
		for k, of := range n.open {
			open[k.route] += of
		}
	}
	for uid, t := range b.totals {
		if r := snap.Route(uid); r != nil {
			emit(telemetry.RouteFigures{
				Namespace: r.GetMetadata().GetNamespace(), Route: r.GetMetadata().GetName(),
				Requests: t.requests, Errors: t.errors, Received: t.received, Sent: t.sent, Open: open[uid],
				Below: below(t.latencies), Seconds: seconds(t.latencies),
			})
		}
	}
}

// below counts the latencies up to each bound of the metric, and at last all of them.
func below(of trafficstat.Counts) []uint64 {
	bounds := telemetry.RouteSeconds.Buckets
	counts := make([]uint64, len(bounds)+1)
	for bucket, n := range of {
		_, to := trafficstat.Bounds(bucket)
		for i, bound := range bounds {
			if to.Seconds() <= bound {
				counts[i] += uint64(n)
			}
		}
		counts[len(bounds)] += uint64(n)
	}
	return counts
}
