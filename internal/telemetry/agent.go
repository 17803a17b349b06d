package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Agent is the metrics of an agent. A nil *Agent counts nothing.
type Agent struct {
	sessions, failures, restarts, evictions prometheus.Counter
	imagesRemoved, imageBytesRemoved        prometheus.Counter
	connected                               prometheus.Gauge
	exits, pulls, probes                    *prometheus.CounterVec
	chunks, chunkBytes                      *prometheus.CounterVec
	driverSeconds                           *prometheus.HistogramVec
	measureSeconds                          prometheus.Observer
}

// NewAgent registers them.
func NewAgent(r *Registry) *Agent {
	return &Agent{
		sessions: r.Counter(AgentSessions).WithLabelValues(), failures: r.Counter(AgentSessionFailures).WithLabelValues(),
		restarts: r.Counter(AgentRestarts).WithLabelValues(), connected: r.Gauge(AgentConnected).WithLabelValues(),
		evictions: r.Counter(AgentEvictions).WithLabelValues(), imagesRemoved: r.Counter(AgentImagesRemoved).WithLabelValues(),
		imageBytesRemoved: r.Counter(AgentImageBytesRemoved).WithLabelValues(),
		exits:             r.Counter(AgentExits), pulls: r.Counter(AgentPulls), probes: r.Counter(AgentProbes),
		chunks: r.Counter(AgentChunkOperations), chunkBytes: r.Counter(AgentChunkBytes),
		driverSeconds: r.Histogram(AgentDriverSeconds), measureSeconds: r.Histogram(AgentMeasureSeconds).WithLabelValues(),
	}
}

// SessionOpened counts a session that received assignments.
func (a *Agent) SessionOpened() {
	if a != nil {
		a.sessions.Inc()
		a.connected.Set(1)
	}
}

// SessionEnded counts the end of a session, or the failure to open one.
func (a *Agent) SessionEnded() {
	if a != nil {
		a.failures.Inc()
		a.connected.Set(0)
	}
}

// Drove measures a call of a driver.
func (a *Agent) Drove(driver, verb string, err error, took time.Duration) {
	if a == nil {
		return
	}
	result := "done"
	if err != nil {
		result = "failed"
	}
	a.driverSeconds.WithLabelValues(driver, verb, result).Observe(took.Seconds())
	if verb == "prepare" {
		a.pulls.WithLabelValues(result).Inc()
	}
}

// Restarted counts a restart of a replica.
func (a *Agent) Restarted() {
	if a != nil {
		a.restarts.Inc()
	}
}

// ImageRemoved counts an unused image that was removed for the space on the disk.
func (a *Agent) ImageRemoved(bytes int64) {
	if a != nil {
		a.imagesRemoved.Inc()
		a.imageBytesRemoved.Add(float64(max(0, bytes)))
	}
}

// Evicted counts a replica that was evicted for lack of memory or disk.
func (a *Agent) Evicted() {
	if a != nil {
		a.evictions.Inc()
	}
}

// Probed counts an attempt of a probe: success, failure or unknown.
func (a *Agent) Probed(probe, result string) {
	if a != nil {
		a.probes.WithLabelValues(probe, result).Inc()
	}
}

// Exited counts an unrequested exit: completed, failed, oom or unhealthy.
func (a *Agent) Exited(result string) {
	if a != nil {
		a.exits.WithLabelValues(result).Inc()
	}
}

// Measured measures a round of measurements.
func (a *Agent) Measured(took time.Duration) {
	if a != nil {
		a.measureSeconds.Observe(took.Seconds())
	}
}

// Chunk counts what was done with a chunk of the object store: put, get or fetch, with its result.
func (a *Agent) Chunk(operation, result string, bytes int) {
	if a == nil {
		return
	}
	a.chunks.WithLabelValues(operation, result).Inc()
	if result == "done" {
		a.chunkBytes.WithLabelValues(operation).Add(float64(max(0, bytes)))
	}
}
