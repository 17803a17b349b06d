package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// What is done with chunks.
const (
	ChunkPut   = "put"
	ChunkGet   = "get"
	ChunkFetch = "fetch"
)

// Chunks is what a server counts of the chunks that it puts on nodes and gets from them. A nil *Chunks counts nothing.
type Chunks struct {
	done    *prometheus.CounterVec
	bytes   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	deleted prometheus.Counter
	damaged prometheus.Counter
}

// NewChunks registers them.
func NewChunks(r *Registry) *Chunks {
	return &Chunks{
		done: r.Counter(ChunkOperations), bytes: r.Counter(ChunkBytes), seconds: r.Histogram(ChunkSeconds),
		deleted: r.Counter(ChunksDeleted).WithLabelValues(), damaged: r.Counter(ChunksDamaged).WithLabelValues(),
	}
}

// Done counts what was done with a chunk: done, missing, damaged, full, cancelled or failed. Of a fetch, the time is not
// known.
func (c *Chunks) Done(operation, result string, bytes int, took time.Duration) {
	if c == nil {
		return
	}
	c.done.WithLabelValues(operation, result).Inc()
	if result != "done" {
		return
	}
	c.bytes.WithLabelValues(operation).Add(float64(max(0, bytes)))
	if operation != ChunkFetch {
		c.seconds.WithLabelValues(operation).Observe(took.Seconds())
	}
}

// Deleted counts chunks that nodes do not have any more.
func (c *Chunks) Deleted(count int) {
	if c != nil {
		c.deleted.Add(float64(count))
	}
}

// Damaged counts chunks that nodes found damaged or missing.
func (c *Chunks) Damaged(count int) {
	if c != nil {
		c.damaged.Add(float64(count))
	}
}
