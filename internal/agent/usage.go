package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/scrape"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	// measureShare limits the time spent on measuring to one part in so many. A node with
	// very many replicas measures them less often than it sends heartbeats.
	measureShare = 200
	// measureAtLeast is the longest time between measurements.
	measureAtLeast = 30 * time.Second
	// measureGap is the shortest time that gives a meaningful CPU rate.
	measureGap = 100 * time.Millisecond
	// oomEventInterval is the shortest time between two events about OOM kills in one task.
	oomEventInterval = time.Minute
)

// meter remembers the last measurement of every running task.
type meter struct {
	mu   sync.Mutex
	last map[string]measurement // by task id
	due  time.Time
}

type measurement struct {
	at    time.Time // with its monotonic part: a wall clock may jump
	nanos uint64
	cpu   float64
	// oomKills is how many processes were OOM-killed so far, and lastEvent when the last event was
	// sent.
	oomKills  uint64
	lastEvent time.Time
}

// runningTask is a task that can be measured.
type runningTask struct {
	id         string
	meter      driver.Meter
	assignment *v1.Assignment
	replica    *v1.Replica
}

func (a *Agent) runningTasks() []runningTask {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []runningTask
	for _, r := range a.replicas {
		id, _ := r.running()
		if m, ok := r.driver.(driver.Meter); ok && id != "" {
			assignment := r.wanted().assignment
			all = append(all, runningTask{id: id, meter: m, assignment: assignment, replica: assignment.GetReplica()})
		}
	}
	return all
}

// scraped are the running replicas whose workload is scaled by a metric of its program.
func (a *Agent) scraped() (all []scrape.Target) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, r := range a.replicas {
		task, status := r.running()
		assignment := r.wanted().assignment
		if metric := assignment.GetMetric(); metric != nil && task != "" {
			addresses := probedAddresses(assignment.GetRevision().GetSpec().GetWorkload(), status.GetAddresses())
			all = append(all, scrape.Target{UID: uid, Attempt: task, Metric: metric, Addresses: addresses})
		}
	}
	return all
}

// usageNow is what the running replicas use, or nothing if the last measurement is too
// recent for its cost.
func (a *Agent) usageNow(ctx context.Context) []*v1.ReplicaUsage {
	a.meter.mu.Lock()
	defer a.meter.mu.Unlock()
	began := time.Now()
	if began.Before(a.meter.due) {
		return nil
	}
	usage := a.measure(ctx)
	took := time.Since(began)
	a.meter.due = began.Add(min(took*measureShare, measureAtLeast) - a.pace.now()/2) // the nearest heartbeat
	if len(usage) > 0 {
		a.metrics.Measured(took)
	}
	return usage
}

// Usage measures the running replicas now.
func (a *Agent) Usage(ctx context.Context) []*v1.ReplicaUsage {
	a.meter.mu.Lock()
	defer a.meter.mu.Unlock()
	return a.measure(ctx)
}

// measure asks the drivers. It omits tasks that cannot be measured, most likely because
// they have just ended. The caller holds the meter.
func (a *Agent) measure(ctx context.Context) []*v1.ReplicaUsage {
	tasks := a.runningTasks()
	seen := make(map[string]measurement, len(tasks))
	usage := make([]*v1.ReplicaUsage, 0, len(tasks))
	for _, t := range tasks {
		stats, err := t.meter.Stats(ctx, t.id)
		if err != nil {
			continue
		}
		now := a.meter.since(t.id, stats)
		now = a.reportOOMKills(t, now, stats.OOMKills)
		seen[t.id] = now
		u := a.usageOf(t.replica, stats, now.cpu)
		u.BandwidthLimit = t.assignment.GetBandwidth()
		usage = append(usage, u)
	}
	a.meter.last = seen
	return usage
}

// reportOOMKills sends an event when a process was OOM-killed and its task goes on, which
// would go unnoticed otherwise. Kills before the first measurement were reported by an
// earlier agent, or end the task.
func (a *Agent) reportOOMKills(t runningTask, now measurement, oomKills uint64) measurement {
	before, known := a.meter.last[t.id]
	now.oomKills, now.lastEvent = oomKills, before.lastEvent
	if !known || oomKills <= before.oomKills {
		return now
	}
	if now.at.Sub(now.lastEvent) < oomEventInterval {
		now.oomKills = before.oomKills // the next event includes it
		return now
	}
	a.reportEvent("warning", "OutOfMemory", t.replica.GetMetadata().GetUid(),
		fmt.Sprintf("%s. Processes of it were killed, %d since it was started; it goes on.", spec.OutOfMemory(memoryLimit(t.assignment)), oomKills))
	now.lastEvent = now.at
	return now
}

// since is the next measurement of a task, with the CPUs in use since the last one. Two
// that are too close count as one.
func (m *meter) since(task string, stats driver.Stats) measurement {
	now := measurement{at: stats.At, nanos: stats.CPUNanos}
	before, ok := m.last[task]
	if !ok {
		return now
	}
	passed := now.at.Sub(before.at)
	if passed < measureGap {
		return before
	}
	if now.nanos >= before.nanos {
		now.cpu = float64(now.nanos-before.nanos) / float64(passed)
	}
	return now
}

func (a *Agent) usageOf(r *v1.Replica, stats driver.Stats, cpu float64) *v1.ReplicaUsage {
	u := &v1.ReplicaUsage{
		Uid: r.GetMetadata().GetUid(), Namespace: r.GetMetadata().GetNamespace(), Replica: r.GetMetadata().GetName(),
		Workload: r.GetSpec().GetWorkload(), Node: r.GetSpec().GetNode(), Time: timestamppb.New(stats.At),
		CpuNanos: stats.CPUNanos, ThrottledNanos: stats.ThrottledNanos, ThrottledPeriods: stats.ThrottledPeriods,
		MemoryBytes: stats.MemoryBytes, MemoryLimitBytes: stats.MemoryLimit, Pids: stats.PIDs,
		ReadBytes: stats.BlockReadBytes, WrittenBytes: stats.BlockWriteBytes, Cpu: cpu,
	}
	// A replica on the host network has no counters of its own.
	if counted, err := a.network.Counters(u.GetUid()); err == nil {
		u.ReceivedBytes, u.SentBytes = counted.Received, counted.Sent
		u.ReceivedDropped, u.ReceivedDelayed = counted.HeldReceived.Dropped, counted.HeldReceived.Delayed
		u.SentDropped, u.SentDelayed = counted.HeldSent.Dropped, counted.HeldSent.Delayed
	}
	if value, known, problem := a.scraper.Value(u.GetUid()); known {
		u.Metric = &value
	} else {
		u.MetricProblem = problem
	}
	return u
}
