package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// S3 is what a server counts of the S3 API. A nil *S3 counts nothing.
type S3 struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	received prometheus.Counter
	sent     prometheus.Counter
}

// NewS3 registers them.
func NewS3(r *Registry) *S3 {
	return &S3{
		requests: r.Counter(S3Requests), seconds: r.Histogram(S3Seconds),
		received: r.Counter(S3Received).WithLabelValues(), sent: r.Counter(S3Sent).WithLabelValues(),
	}
}

// Done counts a request that has ended.
func (s *S3) Done(operation string, code int, received, sent int64, took time.Duration) {
	if s == nil {
		return
	}
	s.requests.WithLabelValues(operation, strconv.Itoa(code)).Inc()
	s.seconds.WithLabelValues(operation).Observe(took.Seconds())
	s.received.Add(float64(received))
	s.sent.Add(float64(sent))
}
