package telemetry

import (
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// MaxReplicas is how many replicas a scrape shows one by one. The rest is only counted, so
// that a large cluster does not overload the scraper.
const MaxReplicas = 2000

// EmitReplicas reports the usage of as many replicas as a scrape shows.
func EmitReplicas(emit Emit, replicas []*v1.ReplicaUsage) {
	shown := replicas[:min(len(replicas), MaxReplicas)]
	emit(ReplicasOmitted, float64(len(replicas)-len(shown)))
	for _, u := range shown {
		emitOne := func(m Metric, value float64) {
			emit(m, value, u.GetNamespace(), u.GetWorkload(), u.GetReplica(), u.GetNode())
		}
		emitOne(ReplicaCPU, seconds(u.GetCpuNanos()))
		emitOne(ReplicaThrottled, seconds(u.GetThrottledNanos()))
		emitOne(ReplicaThrottledPeriods, float64(u.GetThrottledPeriods()))
		emitOne(ReplicaMemory, float64(u.GetMemoryBytes()))
		if limit := u.GetMemoryLimitBytes(); limit > 0 {
			emitOne(ReplicaMemoryLimit, float64(limit))
		}
		emitOne(ReplicaPIDs, float64(u.GetPids()))
		if u.GetReceivedBytes() > 0 || u.GetSentBytes() > 0 {
			emitOne(ReplicaReceived, float64(u.GetReceivedBytes()))
			emitOne(ReplicaSent, float64(u.GetSentBytes()))
		}
		emitOne(ReplicaRead, float64(u.GetReadBytes()))
		emitOne(ReplicaWritten, float64(u.GetWrittenBytes()))
	}
}

func seconds(nanos uint64) float64 { return float64(nanos) / float64(time.Second) }
