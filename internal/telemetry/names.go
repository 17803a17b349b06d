package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Names is what a server counts of the group that keeps the names of objects. A nil *Names counts nothing.
type Names struct {
	proposals            *prometheus.CounterVec
	commitSeconds, fsync prometheus.Observer
}

// NewNames registers them.
func NewNames(r *Registry) *Names {
	return &Names{
		proposals: r.Counter(NamesProposals), commitSeconds: r.Histogram(NamesCommitSeconds).WithLabelValues(),
		fsync: r.Histogram(NamesFsyncSeconds).WithLabelValues(),
	}
}

// Proposed counts a proposal on the leader, with its outcome: accepted, refused or failed.
func (n *Names) Proposed(result string, took time.Duration) {
	if n == nil {
		return
	}
	n.proposals.WithLabelValues(result).Inc()
	if result == "accepted" {
		n.commitSeconds.Observe(took.Seconds())
	}
}

// Synced measures a write to the log.
func (n *Names) Synced(took time.Duration) {
	if n != nil {
		n.fsync.Observe(took.Seconds())
	}
}

// Snapshotted implements consensus.Observer. A snapshot is only a mark.
func (n *Names) Snapshotted(time.Duration) {}
