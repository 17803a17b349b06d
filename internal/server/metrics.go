package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"

	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/state"
)

// metrics are what /metrics shows of this server.
type metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(c *consensus.Consensus, store *state.Store) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cloudless_api_calls_total", Help: "API calls by method and code.",
		}, []string{"method", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "cloudless_api_call_seconds", Help: "Time to answer an API call; for streams, how long they lasted.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 4, 9),
		}, []string{"method"}),
	}
	m.registry.MustRegister(m.calls, m.seconds, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("cloudless_raft_leader", "1 while this server leads.", func() float64 {
			if c.IsLeader() {
				return 1
			}
			return 0
		}),
		gauge("cloudless_state_index", "Index of the newest applied log entry.", func() float64 { return float64(store.Snapshot().Index()) }),
	)
	for kind, help := range map[state.Kind]string{
		state.KindNode: "Nodes.", state.KindWorkload: "Workloads.", state.KindReplica: "Replicas, ended ones included.", state.KindEvent: "Events kept.",
	} {
		m.registry.MustRegister(gauge("cloudless_"+string(kind)+"s", help, func() float64 { return float64(store.Snapshot().Count(kind)) }))
	}
	return m
}

func gauge(name, help string, f func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f)
}

func (m *metrics) called(method string, code codes.Code, took time.Duration) {
	m.calls.WithLabelValues(method, code.String()).Inc()
	m.seconds.WithLabelValues(method).Observe(took.Seconds())
}
