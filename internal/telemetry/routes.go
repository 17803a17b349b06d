package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Routes are the metrics about single routes.
func Routes() []Metric {
	return []Metric{RouteRequests, RouteErrors, RouteSeconds, RouteOpen, RouteReceived, RouteSent}
}

// RouteFigures are what is known of one route since the leader has begun to count.
type RouteFigures struct {
	Namespace, Route                       string
	Requests, Errors, Received, Sent, Open int64
	// Below is how many requests took at most the bounds of RouteSeconds, each bound with all below it; Seconds is their sum,
	// as far as the buckets of nodes tell it.
	Below   []uint64
	Seconds float64
}

// CollectRoutes registers the metrics of routes, which one function computes on demand, until stop is called.
func (r *Registry) CollectRoutes(collect func(emit func(RouteFigures))) (stop func()) {
	c := &routeCollector{collect: collect, descs: map[string]*prometheus.Desc{}}
	for _, m := range Routes() {
		c.descs[m.Name] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
	}
	r.prometheus.MustRegister(c)
	return func() { r.prometheus.Unregister(c) }
}

type routeCollector struct {
	descs   map[string]*prometheus.Desc
	collect func(emit func(RouteFigures))
}

func (c *routeCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		out <- desc
	}
}

func (c *routeCollector) Collect(out chan<- prometheus.Metric) {
	c.collect(func(f RouteFigures) {
		one := func(m Metric, value int64) {
			kind := prometheus.CounterValue
			if m.Kind == KindGauge {
				kind = prometheus.GaugeValue
			}
			out <- prometheus.MustNewConstMetric(c.descs[m.Name], kind, float64(value), f.Namespace, f.Route)
		}
		one(RouteRequests, f.Requests)
		one(RouteErrors, f.Errors)
		one(RouteReceived, f.Received)
		one(RouteSent, f.Sent)
		one(RouteOpen, f.Open)
		buckets := map[float64]uint64{}
		for i, bound := range RouteSeconds.Buckets {
			buckets[bound] = f.Below[i]
		}
		out <- prometheus.MustNewConstHistogram(c.descs[RouteSeconds.Name], f.Below[len(f.Below)-1], f.Seconds, buckets, f.Namespace, f.Route)
	})
}
