package telemetry

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestScrapeShowsRoutes(t *testing.T) {
	r := NewRegistry()
	below := make([]uint64, len(RouteSeconds.Buckets)+1)
	for i := range below {
		below[i] = uint64(i)
	}
	stop := r.CollectRoutes(func(emit func(RouteFigures)) {
		emit(RouteFigures{Namespace: "default", Route: "shop", Requests: 9, Errors: 1, Received: 90, Sent: 900, Open: 2, Below: below, Seconds: 1.5})
	})
	if err := testutil.GatherAndCompare(r.Gatherer(), strings.NewReader(`
# HELP cloudless_route_requests_total Requests of a route; for TCP and UDP, connections and flows. Only the leader counts.
# TYPE cloudless_route_requests_total counter
cloudless_route_requests_total{namespace="default",route="shop"} 9
# HELP cloudless_route_open Requests and connections of a route that are open now. Only the leader counts.
# TYPE cloudless_route_open gauge
cloudless_route_open{namespace="default",route="shop"} 2
`), RouteRequests.Name, RouteOpen.Name); err != nil {
		t.Error(err)
	}
	if n, err := testutil.GatherAndCount(r.Gatherer(), RouteSeconds.Name); err != nil || n != 1 {
		t.Errorf("%d histograms are shown (%v)", n, err)
	}
	if problems, err := testutil.GatherAndLint(r.Gatherer()); err != nil || len(problems) != 0 {
		t.Errorf("a linter of metrics says %v (%v)", problems, err)
	}
	stop()
	if n, err := testutil.GatherAndCount(r.Gatherer(), RouteRequests.Name); err != nil || n != 0 {
		t.Errorf("after the end, %d routes are shown (%v)", n, err)
	}
}
