package telemetry

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Registry holds the metrics of one process.
type Registry struct{ prometheus *prometheus.Registry }

// NewRegistry has the metrics of the Go runtime and of the process.
func NewRegistry() *Registry {
	r := &Registry{prometheus.NewRegistry()}
	r.prometheus.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler answers a scrape. The caller checks permissions.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.prometheus, promhttp.HandlerOpts{})
}

// Gatherer reads the metrics within the process.
func (r *Registry) Gatherer() prometheus.Gatherer { return r.prometheus }

// Counter registers a counter of the catalogue.
func (r *Registry) Counter(m Metric) *prometheus.CounterVec {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.Name, Help: m.Help}, m.Labels)
	r.prometheus.MustRegister(vec)
	return vec
}

// Gauge registers a gauge of the catalogue.
func (r *Registry) Gauge(m Metric) *prometheus.GaugeVec {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.Name, Help: m.Help}, m.Labels)
	r.prometheus.MustRegister(vec)
	return vec
}

// Histogram registers a histogram of the catalogue.
func (r *Registry) Histogram(m Metric) *prometheus.HistogramVec {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.Name, Help: m.Help, Buckets: m.Buckets}, m.Labels)
	r.prometheus.MustRegister(vec)
	return vec
}

// Emit reports one value during a scrape.
type Emit func(m Metric, value float64, labels ...string)

// Collect registers counters and gauges that one function computes on demand, until stop is
// called.
func (r *Registry) Collect(metrics []Metric, collect func(Emit)) (stop func()) {
	c := &collector{descs: map[string]*prometheus.Desc{}, collect: collect}
	for _, m := range metrics {
		c.descs[m.Name] = prometheus.NewDesc(m.Name, m.Help, m.Labels, nil)
	}
	r.prometheus.MustRegister(c)
	return func() { r.prometheus.Unregister(c) }
}

type collector struct {
	descs   map[string]*prometheus.Desc
	collect func(Emit)
}

func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		out <- desc
	}
}

func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.collect(func(m Metric, value float64, labels ...string) {
		kind := prometheus.GaugeValue
		if m.Kind == KindCounter {
			kind = prometheus.CounterValue
		}
		one, err := prometheus.NewConstMetric(c.descs[m.Name], kind, value, labels...)
		if err != nil {
			one = prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		}
		out <- one
	})
}
