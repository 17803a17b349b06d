package agent

import (
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/nodenet"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// busy is a program that uses so many CPUs from the beginning of the test on.
func busy(cpus float64, cost time.Duration) func(string) driver.Stats {
	began := time.Now()
	return func(string) driver.Stats {
		time.Sleep(cost)
		return driver.Stats{
			At: time.Now(), CPUNanos: uint64(cpus * float64(time.Since(began))), MemoryBytes: 7 << 20, MemoryLimit: 64 << 20,
			PIDs: 3, ThrottledNanos: 5, ThrottledPeriods: 1, BlockReadBytes: 11, BlockWriteBytes: 12,
		}
	}
}

// nextBeat is the next heartbeat with usage of replicas, and how many came before it.
func nextBeat(s *session) (measured *v1.Heartbeat, without int) {
	for {
		up := <-s.ups
		beat := up.GetHeartbeat()
		switch {
		case beat == nil:
		case len(beat.GetReplicas()) > 0:
			return beat, without
		default:
			without++
		}
	}
}

func TestHeartbeatCarriesUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.stats = busy(0.5, 0)
		n.network.counters = map[string]nodenet.Counters{"a": {Received: 100, Sent: 200}}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b")))
		s.await(t, "a", "running")
		s.await(t, "b", "running")
		beat, _ := nextBeat(s)
		if len(beat.GetReplicas()) != 2 {
			t.Fatalf("a heartbeat measures %v", beat.GetReplicas())
		}
		for _, u := range beat.GetReplicas() {
			if u.GetCpu() != 0 {
				t.Errorf("one measurement says %v CPUs", u.GetCpu())
			}
		}
		beat, without := nextBeat(s)
		if without != 0 {
			t.Errorf("%d heartbeats came without measurements, which cost nothing", without)
		}
		for _, u := range beat.GetReplicas() {
			if math.Abs(u.GetCpu()-0.5) > 0.001 || u.GetMemoryBytes() != 7<<20 || u.GetMemoryLimitBytes() != 64<<20 || u.GetPids() != 3 ||
				u.GetThrottledNanos() != 5 || u.GetThrottledPeriods() != 1 || u.GetReadBytes() != 11 || u.GetWrittenBytes() != 12 || u.GetTime() == nil {
				t.Errorf("measured %v", u)
			}
			if counted := u.GetReceivedBytes() == 100 && u.GetSentBytes() == 200; counted != (u.GetUid() == "a") {
				t.Errorf("the network of %s has counted %v", u.GetUid(), u)
			}
		}
		// What does not run is not measured.
		s.send(t, delta(stopped(assignment("b"))))
		s.await(t, "b", "stopped")
		if beat, _ := nextBeat(s); len(beat.GetReplicas()) != 1 {
			t.Errorf("after one has stopped, the heartbeat says %v", beat.GetReplicas())
		}
	})
}

// Measuring takes at most a two-hundredth of the time, however many replicas there are.
// Heartbeats are not delayed.
func TestMeasuringTimeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.stats = busy(1, 20*time.Millisecond)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		nextBeat(s)
		if _, without := nextBeat(s); without != 3 {
			t.Errorf("%d heartbeats came without a measurement that takes 20 ms, want one measurement in four seconds", without)
		}
	})
}

// A scrape between two heartbeats does not disturb the measured rate.
func TestCloseMeasurementsCountAsOne(t *testing.T) {
	m := &meter{last: map[string]measurement{}}
	at := time.Now()
	see := func(after time.Duration, nanos uint64) float64 {
		now := m.since("t", driver.Stats{At: at.Add(after), CPUNanos: nanos})
		m.last["t"] = now
		return now.cpu
	}
	if cpu := see(0, 1000); cpu != 0 {
		t.Errorf("the first says %v", cpu)
	}
	if cpu := see(time.Second, 1000+250e6); cpu != 0.25 {
		t.Errorf("a second later it is %v", cpu)
	}
	if cpu := see(time.Second+time.Millisecond, 1000+251e6); cpu != 0.25 {
		t.Errorf("a moment later it is %v", cpu)
	}
	if cpu := see(2*time.Second, 1000+750e6); cpu != 0.5 {
		t.Errorf("another second later it is %v", cpu)
	}
	if cpu := see(3*time.Second, 5); cpu != 0 {
		t.Errorf("a counter that went back says %v", cpu)
	}
}

func TestAgentMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		registry := telemetry.NewRegistry()
		n.metrics = telemetry.NewAgent(registry)
		n.start()
		n.agent.Observe(registry)
		s := n.join()
		s.send(t, full(assignment("a", restart("always", "1s", "1s"))))
		s.await(t, "a", "running")
		n.tasks.exit("a-1", driver.Exit{Code: 3})
		s.awaitRestart(t, "a", 1)
		close(s.end) // the server ends the session
		n.join().send(t, full(assignment("a", restart("always", "1s", "1s"))))
		synctest.Wait()
		err := testutil.GatherAndCompare(registry.Gatherer(), strings.NewReader(`
# HELP cloudless_agent_connected 1 while the agent has a session with a server.
# TYPE cloudless_agent_connected gauge
cloudless_agent_connected 1
# HELP cloudless_agent_exits_total Exits of replicas without a request to stop, by result: completed, failed, oom or unhealthy.
# TYPE cloudless_agent_exits_total counter
cloudless_agent_exits_total{result="failed"} 1
# HELP cloudless_agent_pulls_total Images requested from a driver, whether cached or not, by result: done or failed.
# TYPE cloudless_agent_pulls_total counter
cloudless_agent_pulls_total{result="done"} 2
# HELP cloudless_agent_replicas Replicas of this node by phase.
# TYPE cloudless_agent_replicas gauge
cloudless_agent_replicas{phase="running"} 1
# HELP cloudless_agent_restarts_total Restarts of replicas after an exit.
# TYPE cloudless_agent_restarts_total counter
cloudless_agent_restarts_total 1
# HELP cloudless_agent_session_failures_total Sessions that ended or could not be opened.
# TYPE cloudless_agent_session_failures_total counter
cloudless_agent_session_failures_total 1
# HELP cloudless_node_block_written_bytes_total Bytes written to the machine's disks.
# TYPE cloudless_node_block_written_bytes_total counter
cloudless_node_block_written_bytes_total 4
# HELP cloudless_node_network_received_bytes_total Bytes received by the machine's network devices.
# TYPE cloudless_node_network_received_bytes_total counter
cloudless_node_network_received_bytes_total 1
# HELP cloudless_agent_sessions_total Sessions opened with a server; all but the first are reconnects.
# TYPE cloudless_agent_sessions_total counter
cloudless_agent_sessions_total 2
`), "cloudless_node_block_written_bytes_total", "cloudless_node_network_received_bytes_total",
			"cloudless_agent_connected", "cloudless_agent_exits_total", "cloudless_agent_pulls_total", "cloudless_agent_replicas",
			"cloudless_agent_restarts_total", "cloudless_agent_session_failures_total", "cloudless_agent_sessions_total")
		if err != nil {
			t.Error(err)
		}
		for _, m := range []telemetry.Metric{telemetry.AgentDriverSeconds, telemetry.AgentLogBytes} {
			if n, err := testutil.GatherAndCount(registry.Gatherer(), m.Name); err != nil || n == 0 {
				t.Errorf("%s is not shown (%v)", m.Name, err)
			}
		}
	})
}

// A task whose processes are OOM-killed may go on, which would go unnoticed. It is
// reported, but not for each process.
func TestOOMKillsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		began := time.Now()
		var oomKills atomic.Uint64
		n.tasks.stats = func(string) driver.Stats { return driver.Stats{At: time.Now(), OOMKills: oomKills.Load()} }
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		nextBeat(s)
		oomKills.Store(1)
		var told []time.Duration
		for time.Since(began) < 3*time.Minute {
			up := <-s.ups
			for _, e := range up.GetReport().GetEvents() {
				if e.GetReason() != "OutOfMemory" || e.GetReplicaUid() != "a" || e.GetSeverity() != "warning" {
					t.Errorf("told %v", e)
				}
				told = append(told, time.Since(began))
			}
			if time.Since(began) < 90*time.Second {
				oomKills.Add(1)
			}
		}
		if len(told) != 3 || told[1]-told[0] < oomEventInterval || told[2]-told[1] < oomEventInterval {
			t.Errorf("reported at %v", told)
		}
	})
}
