package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
)

const (
	// measureShare is the part of the time that measuring may take: one in so
	// many. A node with very many replicas measures them less often than it sends
	// heartbeats.
	measureShare = 200
	// measureAtLeast is how often replicas are measured all the same.
	measureAtLeast = 30 * time.Second
	// measureGap is the shortest time that says something about the CPU.
	measureGap = 100 * time.Millisecond
	// killsPause is how long nothing more is said of processes that run out of memory
	// in one task.
	killsPause = time.Minute
)

// meter remembers the last measurement of every running task.
type meter struct {
	mu   sync.Mutex
	last map[string]measurement // by the id of the task
	due  time.Time
}

type measurement struct {
	at    time.Time // with its monotonic part: a wall clock may jump
	nanos uint64
	cpu   float64
	// kills are the processes that ran out of memory so far, told when the cluster was
	// last told of one.
	kills uint64
	told  time.Time
}

// runningTask is a task that can be measured.
type runningTask struct {
	id      string
	meter   driver.Meter
	replica *v1.Replica
	limit   string // of its memory
}

func (a *Agent) runningTasks() []runningTask {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []runningTask
	for _, r := range a.replicas {
		id, _ := r.running()
		if m, ok := r.driver.(driver.Meter); ok && id != "" {
			all = append(all, runningTask{id: id, meter: m, replica: r.wanted().assignment.GetReplica(), limit: memoryLimit(r.wanted().assignment)})
		}
	}
	return all
}

// usageNow is what the running replicas use, or nothing if they were measured
// but a moment ago in relation to what that costs.
func (a *Agent) usageNow(ctx context.Context) []*v1.ReplicaUsage {
	a.meter.mu.Lock()
	defer a.meter.mu.Unlock()
	began := time.Now()
	if began.Before(a.meter.due) {
		return nil
	}
	usage := a.measure(ctx)
	took := time.Since(began)
	a.meter.due = began.Add(min(took*measureShare, measureAtLeast) - a.pace.now()/2) // the beat that is nearest
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

// measure asks the drivers. A task that cannot be measured, most likely because
// it has just ended, is left out. The caller holds the meter.
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
		now = a.noticeKills(t, now, stats.OOMKills)
		seen[t.id] = now
		usage = append(usage, a.usageOf(t.replica, stats, now.cpu))
	}
	a.meter.last = seen
	return usage
}

// noticeKills tells the cluster of processes that ran out of memory while their task
// goes on, which nobody would learn otherwise. What happened before the first
// measurement was seen by an agent before this one, or ends the task.
func (a *Agent) noticeKills(t runningTask, now measurement, kills uint64) measurement {
	before, known := a.meter.last[t.id]
	now.kills, now.told = kills, before.told
	if !known || kills <= before.kills {
		return now
	}
	if now.at.Sub(now.told) < killsPause {
		now.kills = before.kills // it is said with the next
		return now
	}
	a.tell("warning", "OutOfMemory", t.replica.GetMetadata().GetUid(),
		fmt.Sprintf("%s. Processes of it were killed, %d since it was started; it goes on.", spec.OutOfMemory(t.limit), kills))
	now.told = now.at
	return now
}

// since is the next measurement of a task, with the CPUs in use since the last
// one. Two that are too near to each other count as one.
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
	// A replica on the machine's own network has no counters of its own.
	if counted, err := a.network.Counters(u.GetUid()); err == nil {
		u.ReceivedBytes, u.SentBytes = counted.Received, counted.Sent
	}
	return u
}
