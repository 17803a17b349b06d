package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Server is the metrics of a server. Those that are computed on demand use
// Registry.Collect. A nil *Server counts nothing.
type Server struct {
	calls, errors, requests, decisions, autoscaled, orders *prometheus.CounterVec
	secretFailures                                         *prometheus.CounterVec
	callSeconds, commitSeconds                             *prometheus.HistogramVec
	fsyncSeconds, snapshotSeconds, scheduleSeconds         prometheus.Observer
	open, deferred                                         prometheus.Gauge
	moved, secretsSent, secretsDelivered                   prometheus.Counter
}

// NewServer registers them.
func NewServer(r *Registry) *Server {
	return &Server{
		calls: r.Counter(APICalls), errors: r.Counter(APIErrors), requests: r.Counter(HTTPRequests),
		decisions: r.Counter(SchedulingDecisions), callSeconds: r.Histogram(APISeconds), commitSeconds: r.Histogram(RaftCommitSeconds),
		fsyncSeconds: r.Histogram(RaftFsyncSeconds).WithLabelValues(), snapshotSeconds: r.Histogram(RaftSnapshotSeconds).WithLabelValues(),
		scheduleSeconds: r.Histogram(SchedulingSeconds).WithLabelValues(), open: r.Gauge(APIOpen).WithLabelValues(),
		deferred: r.Gauge(DeferredReplicas).WithLabelValues(), autoscaled: r.Counter(AutoscaleDecisions), orders: r.Counter(CertificateOrders),
		moved: r.Counter(MovedReplicas).WithLabelValues(), secretsSent: r.Counter(SecretsSent).WithLabelValues(),
		secretsDelivered: r.Counter(SecretsDelivered).WithLabelValues(), secretFailures: r.Counter(SecretFailures),
	}
}

// CallBegan counts a call that is being answered.
func (s *Server) CallBegan() {
	if s != nil {
		s.open.Inc()
	}
}

// CallEnded counts a call by its outcome; fault is whether the server was at fault.
func (s *Server) CallEnded(method, code string, fault bool, took time.Duration) {
	if s == nil {
		return
	}
	s.open.Dec()
	s.calls.WithLabelValues(method, code).Inc()
	s.callSeconds.WithLabelValues(method).Observe(took.Seconds())
	if fault {
		s.errors.WithLabelValues(method).Inc()
	}
}

// Requested counts an HTTP request.
func (s *Server) Requested(route string, code int) {
	if s != nil {
		s.requests.WithLabelValues(route, strconv.Itoa(code)).Inc()
	}
}

// Proposed measures a proposal, from its beginning to its outcome: accepted,
// refused or failed.
func (s *Server) Proposed(result string, took time.Duration) {
	if s != nil {
		s.commitSeconds.WithLabelValues(result).Observe(took.Seconds())
	}
}

// Synced measures a write to the log.
func (s *Server) Synced(took time.Duration) {
	if s != nil {
		s.fsyncSeconds.Observe(took.Seconds())
	}
}

// Snapshotted measures the writing of a snapshot.
func (s *Server) Snapshotted(took time.Duration) {
	if s != nil {
		s.snapshotSeconds.Observe(took.Seconds())
	}
}

// Scheduled measures one round of the scheduler and counts its results.
func (s *Server) Scheduled(placed, unplaced int, took time.Duration) {
	if s == nil {
		return
	}
	s.scheduleSeconds.Observe(took.Seconds())
	s.decisions.WithLabelValues("placed").Add(float64(placed))
	s.decisions.WithLabelValues("unplaced").Add(float64(unplaced))
}

// Autoscaled counts a decision of autoscaling.
func (s *Server) Autoscaled(decision string) {
	if s != nil {
		s.autoscaled.WithLabelValues(decision).Inc()
	}
}

// Moved counts replicas that are moved to a better node.
func (s *Server) Moved(count int) {
	if s != nil {
		s.moved.Add(float64(count))
	}
}

// CertificateOrdered counts an attempt to issue a certificate.
func (s *Server) CertificateOrdered(source string, issued bool) {
	if s == nil {
		return
	}
	result := "failed"
	if issued {
		result = "issued"
	}
	s.orders.WithLabelValues(source, result).Inc()
}

// SecretsSent counts values of secrets that were sent to nodes.
func (s *Server) SecretsSent(count int) {
	if s != nil && count > 0 {
		s.secretsSent.Add(float64(count))
	}
}

// SecretsDelivered counts acknowledgements of nodes that replicas have a version of a secret.
func (s *Server) SecretsDelivered(count int) {
	if s != nil && count > 0 {
		s.secretsDelivered.Add(float64(count))
	}
}

// SecretFailed counts what failed with secrets: "open" a value, or an acknowledgement that was "refused".
func (s *Server) SecretFailed(what string) {
	if s != nil {
		s.secretFailures.WithLabelValues(what).Inc()
	}
}

// Deferred says how many lost replicas wait for their turn to be replaced.
func (s *Server) Deferred(count int) {
	if s != nil {
		s.deferred.Set(float64(count))
	}
}
