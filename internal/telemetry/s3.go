package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// The metrics of the S3 API.
var (
	S3Requests = Metric{
		Name: "cloudless_s3_requests_total", Kind: KindCounter, From: FromServer, Labels: []string{"operation", "code"},
		Help: "Requests to the S3 API that have ended, by operation, such as GetObject, and HTTP status code.",
	}
	S3Seconds = Metric{
		Name: "cloudless_s3_request_seconds", Kind: KindHistogram, Unit: "seconds", From: FromServer, Labels: []string{"operation"}, Buckets: callBuckets,
		Help: "Time to answer such a request, with the transfer of its content.",
	}
	S3Received = Metric{
		Name: "cloudless_s3_received_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromServer, Help: "Bytes of the bodies of these requests.",
	}
	S3Sent = Metric{
		Name: "cloudless_s3_sent_bytes_total", Kind: KindCounter, Unit: "bytes", From: FromServer, Help: "Bytes of the bodies of their answers.",
	}
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
