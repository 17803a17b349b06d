package traffic

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/must"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
	"github.com/cloudless/cloudless/internal/telemetry"
	"github.com/cloudless/cloudless/internal/trafficstat"
)

// cloud is a state with two nodes, of which both answer for route shop to service api, whose revision is v1.
type cloud struct {
	*Book
	t     *testing.T
	store *state.Store
	index uint64
}

func newCloud(t *testing.T) *cloud {
	c := &cloud{t: t, store: state.New()}
	in := func(uid, name string) *v1.Metadata { return &v1.Metadata{Uid: uid, Name: name, Namespace: "default"} }
	c.put(
		&v1.Cluster{Metadata: &v1.Metadata{Uid: "c", Name: "c"}, Spec: &v1.ClusterSpec{}}, newNode("n1", spec.NodeReady), newNode("n2", spec.NodeReady),
		&v1.Service{Metadata: in("api", "api")}, &v1.Service{Metadata: in("quiet", "quiet")},
		&v1.Revision{Metadata: in("v1", "api-1"), Spec: &v1.RevisionSpec{Number: 1}},
		&v1.Route{Metadata: in("shop", "shop"), Spec: &v1.RouteSpec{Backends: []*v1.RouteBackend{{Service: "api"}}}},
	)
	c.Book = New(c.store)
	return c
}

func newNode(uid, state string) *v1.Node {
	return &v1.Node{Metadata: &v1.Metadata{Uid: uid, Name: uid}, Status: &v1.NodeStatus{State: state}}
}

func (c *cloud) put(objects ...state.Object) {
	var b state.Batch
	for _, o := range objects {
		b.Put(o)
	}
	c.apply(&b)
}

func (c *cloud) apply(b *state.Batch) {
	c.index++
	_, err := c.store.Apply(c.index, b.Transaction(time.Now()))
	must.Succeed(c.t, err)
}

// alive are the reports of nodes without traffic, every five seconds for so long.
func (c *cloud) alive(d time.Duration, nodes ...string) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Second) {
		for _, n := range nodes {
			c.Reported(n, &v1.IngressUp{PortsSet: true})
		}
	}
}

// requests are a report of so many requests to api, each of which took so long.
func requests(n int64, took time.Duration) *v1.IngressUp {
	var latencies trafficstat.Counts
	for range n {
		latencies.Add(took)
	}
	return &v1.IngressUp{Traffic: []*v1.TrafficSample{{
		RouteUid: "shop", ServiceUid: "api", RevisionUid: "v1", Requests: n, Latencies: latencies, Received: n * 100, Sent: n * 1000,
	}}}
}

func (c *cloud) expect(service string, within time.Duration, want float64, known bool) {
	c.t.Helper()
	got, ok := c.Requests(service, within)
	if ok != known || known && math.Abs(got-want) > 0.1*want {
		c.t.Errorf("service %s had %.2f requests/s (known %t), want %.2f (known %t)", service, got, ok, want, known)
	}
}

// Nothing is known before all nodes that answer have reported for the whole time.
func TestRequestsAreUnknownUntilAllNodesAreHeardForLongEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.expect("api", 10*time.Second, 0, false)
		c.Began("n1")
		c.alive(20*time.Second, "n1")
		c.expect("api", 10*time.Second, 0, false) // n2 may have counted some
		c.Began("n2")
		c.alive(5*time.Second, "n1", "n2")
		c.expect("api", 10*time.Second, 0, false)
		c.alive(6*time.Second, "n1", "n2")
		c.expect("api", 10*time.Second, 0, true)
		c.expect("api", time.Minute, 0, false)
		c.expect("quiet", 10*time.Second, 0, false) // no route leads to it: others may use it
	})
}

func TestRequestsOfAllNodesAreAdded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.alive(15*time.Second, "n1", "n2")
		for range 10 {
			c.Reported("n1", requests(30, time.Millisecond))
			c.Reported("n2", requests(10, time.Millisecond))
			time.Sleep(time.Second)
		}
		c.expect("api", 10*time.Second, 40, true)
		c.alive(20*time.Second, "n1", "n2")
		c.expect("api", 10*time.Second, 0, true)
	})
}

// A node without a session is unknown, one that is offline is not waited for, and a silent one is unknown.
func TestNodesThatAreNotHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.alive(15*time.Second, "n1", "n2")
		c.expect("api", 10*time.Second, 0, true)
		c.Ended("n2")
		c.expect("api", 10*time.Second, 0, false)
		c.put(newNode("n2", spec.NodeOffline))
		time.Sleep(2 * time.Second)
		c.expect("api", 10*time.Second, 0, true)
		time.Sleep(Stale)
		c.expect("api", 10*time.Second, 0, false) // n1 says nothing any more
		c.alive(5*time.Second, "n1")
		c.expect("api", 10*time.Second, 0, false) // it may have lost what it counted meanwhile
	})
}

// A WebSocket that is open keeps its service from being scaled to zero.
func TestOpenConnectionsAreUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		open := func(n int64) {
			c.Reported("n1", &v1.IngressUp{Traffic: []*v1.TrafficSample{{RouteUid: "shop", ServiceUid: "api", Open: n}}})
		}
		c.alive(5*time.Second, "n1", "n2")
		open(1)
		c.alive(2*time.Minute, "n1", "n2")
		if rate, known := c.Requests("api", time.Minute); !known || rate == 0 {
			t.Errorf("a service with an open connection has %.3f requests/s (known %t)", rate, known)
		}
		open(0)
		c.expect("api", time.Minute, 0, true)
	})
}

func TestFiguresOfARoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		if c.Route("shop") != nil {
			t.Error("a route has figures that no node has reported")
		}
		c.alive(time.Minute, "n1", "n2")
		for range 60 {
			up := requests(99, 10*time.Millisecond)
			up.Traffic[0].Errors = 9
			up.Traffic = append(up.GetTraffic(), requests(1, time.Second).GetTraffic()...)
			up.Traffic[1].Open = 3
			c.Reported("n1", up)
			time.Sleep(time.Second)
		}
		got := c.Route("shop")
		for name, f := range map[string]struct{ got, want float64 }{
			"requests/s": {got.GetRequests(), 100}, "errors": {got.GetErrorRate(), 0.09}, "P50": {got.GetP50(), 10}, "open": {float64(got.GetOpen()), 3},
			"received": {got.GetReceived(), 10000}, "sent": {got.GetSent(), 100000}, "backends": {float64(len(got.GetBackends())), 1},
		} {
			if math.Abs(f.got-f.want) > 0.07*f.want {
				t.Errorf("%s is %.2f, want %.2f", name, f.got, f.want)
			}
		}
		if b := got.GetBackends()[0]; b.GetService() != "api" || b.GetRevision() != 1 || b.GetRequests() < 93 {
			t.Errorf("the backend is %v", b)
		}
		emitted := 0
		c.Figures(func(f telemetry.RouteFigures) {
			emitted++
			if f.Requests != 6000 || f.Errors != 540 || f.Below[len(f.Below)-1] != 6000 || f.Below[0] != 0 || math.Abs(f.Seconds-119.4) > 10 {
				t.Errorf("the metrics are %+v", f)
			}
		})
		if emitted != 1 {
			t.Errorf("%d routes have metrics", emitted)
		}
	})
}

func TestRequestsOfARevisionSinceAStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		failing := requests(100, time.Millisecond)
		failing.Traffic[0].Errors = 100
		c.Reported("n1", failing)
		time.Sleep(30 * time.Second)
		step := time.Now()
		time.Sleep(time.Second)
		c.Reported("n1", requests(1000, 20*time.Millisecond))
		c.Reported("n2", requests(10, 900*time.Millisecond))
		if n, errors, p99 := c.Revision("v1", step); n != 1010 || errors != 0 || p99 < 15*time.Millisecond || p99 > 30*time.Millisecond {
			t.Errorf("the step had %d requests, %d of them failed, P99 %s", n, errors, p99)
		}
		time.Sleep(20 * time.Minute)
		c.Reported("n2", requests(90, 900*time.Millisecond))
		if n, _, p99 := c.Revision("v1", step); n < 1100 || p99 < 800*time.Millisecond {
			t.Errorf("later, the step had %d requests, P99 %s", n, p99)
		}
		if n, _, _ := c.Revision("other", step); n != 0 {
			t.Errorf("another revision had %d requests", n)
		}
	})
}

func TestPortsAreAsTheNodeSaidLast(t *testing.T) {
	c := newCloud(t)
	if _, known := c.Port("n1", "tcp", 443); known {
		t.Error("a port is known of a node that has said nothing")
	}
	c.Reported("n1", &v1.IngressUp{PortsSet: true, Ports: []*v1.IngressPort{{Protocol: "tcp", Port: 443, Problem: "nginx uses it"}, {Protocol: "tcp", Port: 80}}})
	c.Reported("n1", &v1.IngressUp{})
	if problem, known := c.Port("n1", "tcp", 443); !known || problem != "nginx uses it" {
		t.Errorf("port 443: %q (known %t)", problem, known)
	}
	if problem, known := c.Port("n1", "tcp", 80); !known || problem != "" {
		t.Errorf("port 80: %q (known %t)", problem, known)
	}
	c.Reported("n1", &v1.IngressUp{PortsSet: true})
	if _, known := c.Port("n1", "tcp", 80); known {
		t.Error("a port is known that the node does not open any more")
	}
}

// A node cannot make the leader remember what does not exist, nor numbers that make no sense.
func TestNonsenseIsNotWrittenDown(t *testing.T) {
	c := newCloud(t)
	c.Reported("n1", &v1.IngressUp{PortsSet: true, Traffic: []*v1.TrafficSample{
		{RouteUid: "nothing", Requests: 5},
		{RouteUid: "shop", ServiceUid: "nothing", RevisionUid: "nothing", Requests: -5, Errors: 7, Latencies: []int64{-1, 1 << 60}, Open: -1},
		{RouteUid: "shop", ServiceUid: "api", Requests: 2, Errors: 7, Latencies: make([]int64, 10*trafficstat.Buckets)},
	}})
	got := c.Route("shop")
	if got.GetRequests() <= 0 || got.GetErrorRate() != 1 || got.GetOpen() != 0 || len(c.series) != 2 {
		t.Errorf("the figures are %v with %d series", got, len(c.series))
	}
}

// What is gone is forgotten, and so is everything when the leadership ends.
func TestBookForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCloud(t)
		c.Reported("n1", requests(1, time.Millisecond))
		var b state.Batch
		b.Delete(state.KindRoute, "shop")
		c.apply(&b)
		c.tidy(c.store.Snapshot())
		if len(c.series)+len(c.byRoute)+len(c.byService)+len(c.byRevision)+len(c.totals) != 0 {
			t.Errorf("of a route that is gone, %d series and %d totals are left", len(c.series), len(c.totals))
		}
	})
}

// However the requests come, the window knows how many there were in the time that it remembers exactly, and loses none
// before the oldest level ends.
func TestWindowLosesNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := window[counts]{levels: countLevels, merge: (*counts).add}
		var now time.Duration
		type came struct {
			at time.Duration
			n  int64
		}
		var all []came
		for range rapid.IntRange(1, 300).Draw(rt, "reports") {
			now += time.Duration(rapid.Int64Range(0, int64(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(rt, "pause"))).Draw(rt, "for"))
			one := came{now, rapid.Int64Range(1, 100).Draw(rt, "requests")}
			all = append(all, one)
			w.add(now, counts{requests: one.n})
		}
		for _, within := range []time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour, 24 * time.Hour} {
			var exact, wider int64
			for _, c := range all {
				if c.at >= now-within {
					exact += c.n
				}
				if c.at >= now-within-slack(within) {
					wider += c.n
				}
			}
			var sum counts
			w.since(now-within, sum.add)
			if sum.requests < exact || sum.requests > wider {
				rt.Fatalf("within %s there were %d requests, the window knows %d (at most %d)", within, exact, sum.requests, wider)
			}
		}
		if limit := 120 + 60 + 151 + 10; len(w.slots) > limit {
			rt.Fatalf("%d slots are kept", len(w.slots))
		}
	})
}

// slack is how much more a window may know of a time, because it remembers the past coarsely.
func slack(within time.Duration) time.Duration {
	switch {
	case within < time.Minute:
		return time.Second
	case within < time.Hour:
		return time.Minute
	}
	return 10 * time.Minute
}
