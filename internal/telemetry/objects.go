package telemetry

import "github.com/prometheus/client_golang/prometheus"

// What the loops of the object store correct when the names and a node do not agree.
const (
	CorrectMissing = "missing"
	CorrectFound   = "found"
	CorrectStray   = "stray"
	CorrectSurplus = "surplus"
	CorrectDamaged = "damaged"
)

// Objects is what the server that leads the names of objects counts. A nil *Objects counts nothing.
type Objects struct {
	short, unreachable, garbage, epoch prometheus.Gauge
	repaired, repairedBytes, failed    prometheus.Counter
	corrected                          *prometheus.CounterVec
	collected, expired                 prometheus.Counter
}

// NewObjects registers them.
func NewObjects(r *Registry) *Objects {
	return &Objects{
		short: r.Gauge(ObjectChunksShort).WithLabelValues(), unreachable: r.Gauge(ObjectChunksUnreachable).WithLabelValues(),
		garbage: r.Gauge(ObjectChunksGarbage).WithLabelValues(), epoch: r.Gauge(ObjectEpoch).WithLabelValues(),
		repaired: r.Counter(ObjectChunksRepaired).WithLabelValues(), repairedBytes: r.Counter(ObjectBytesRepaired).WithLabelValues(),
		failed: r.Counter(ObjectRepairsFailed).WithLabelValues(), corrected: r.Counter(ObjectPlacesCorrected),
		collected: r.Counter(ObjectChunksCollected).WithLabelValues(), expired: r.Counter(ObjectsExpired).WithLabelValues(),
	}
}

// Lacking says how many chunks have too few copies that answer, and how many have none.
func (o *Objects) Lacking(short, unreachable int64) {
	if o != nil {
		o.short.Set(float64(short))
		o.unreachable.Set(float64(unreachable))
	}
}

// Garbage says how many chunks nothing refers to, and in which epoch of their collection that is.
func (o *Objects) Garbage(chunks int64, epoch uint64) {
	if o != nil {
		o.garbage.Set(float64(chunks))
		o.epoch.Set(float64(epoch))
	}
}

// Repaired counts a copy that a chunk has got.
func (o *Objects) Repaired(bytes int64) {
	if o != nil {
		o.repaired.Inc()
		o.repairedBytes.Add(float64(bytes))
	}
}

// RepairFailed counts a copy that a chunk has not got.
func (o *Objects) RepairFailed() {
	if o != nil {
		o.failed.Inc()
	}
}

// Corrected counts places of chunks that were corrected.
func (o *Objects) Corrected(kind string, chunks int) {
	if o != nil && chunks > 0 {
		o.corrected.WithLabelValues(kind).Add(float64(chunks))
	}
}

// Collected counts chunks that nothing referred to and that are gone.
func (o *Objects) Collected(chunks int) {
	if o != nil {
		o.collected.Add(float64(chunks))
	}
}

// Expired counts objects and uploads whose time was over.
func (o *Objects) Expired(count int) {
	if o != nil {
		o.expired.Add(float64(count))
	}
}
