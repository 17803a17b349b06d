package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Agent is what an agent counts while it works. A nil *Agent counts nothing.
type Agent struct {
	sessions, failures, restarts prometheus.Counter
	connected                    prometheus.Gauge
	exits, pulls                 *prometheus.CounterVec
	driverSeconds                *prometheus.HistogramVec
	measureSeconds               prometheus.Observer
}

// NewAgent registers them.
func NewAgent(r *Registry) *Agent {
	return &Agent{
		sessions: r.Counter(AgentSessions).WithLabelValues(), failures: r.Counter(AgentSessionFailures).WithLabelValues(),
		restarts: r.Counter(AgentRestarts).WithLabelValues(), connected: r.Gauge(AgentConnected).WithLabelValues(),
		exits: r.Counter(AgentExits), pulls: r.Counter(AgentPulls),
		driverSeconds: r.Histogram(AgentDriverSeconds), measureSeconds: r.Histogram(AgentMeasureSeconds).WithLabelValues(),
	}
}

// SessionOpened counts a session in which assignments came.
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

// Drove measures a verb of a driver.
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

// Restarted counts a replica that is started again.
func (a *Agent) Restarted() {
	if a != nil {
		a.restarts.Inc()
	}
}

// Exited counts an exit that nobody asked for: completed, failed or oom.
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
