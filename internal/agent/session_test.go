package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
)

func TestSessionRunsWhatIsAssigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		if got := s.hello.GetStatus().GetCapacity().GetMemory(); got != "8Gi" {
			t.Errorf("hello says %q of memory", got)
		}
		if isClosed(n.agent.Ready()) {
			t.Error("ready before the first assignments")
		}
		s.send(t, full(assignment("a")))
		if status := s.await(t, "a", "running"); status.GetPid() != 1001 || status.GetStartTime() == nil {
			t.Errorf("running without a pid or a start time: %v", status)
		}
		<-n.agent.Ready()
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("started %v", got)
		}
	})
}

func TestStoppingTheAgentLeavesTasksRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.stop()
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("tasks after the agent has ended: %v", got)
		}
		if got := n.tasks.stopped(); len(got) > 0 {
			t.Errorf("stopped %v", got)
		}
	})
}

func TestHeartbeatCarriesStatusOnlyWhenItChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		begin := time.Now()
		for range 10 {
			beat := (<-s.ups).GetHeartbeat()
			if beat.GetUsage().GetCpu() != "100m" || beat.GetInterval() != "1s" {
				t.Errorf("heartbeat: %v", beat)
			}
			if beat.GetStatus() != nil {
				t.Errorf("nothing has changed, but the heartbeat says %v", beat.GetStatus())
			}
		}
		if passed := time.Since(begin); passed != 10*time.Second {
			t.Errorf("ten heartbeats took %s", passed)
		}

		n.machine.mu.Lock()
		n.machine.disk = "200Gi"
		n.machine.mu.Unlock()
		n.machine.changes <- struct{}{}
		beat := (<-s.ups).GetHeartbeat()
		if beat.GetStatus().GetCapacity().GetDisk() != "200Gi" {
			t.Errorf("a changed machine was reported as %v", beat)
		}
		if passed := time.Since(begin); passed != 10*time.Second {
			t.Errorf("the change was reported %s late", passed-10*time.Second)
		}
		if beat := (<-s.ups).GetHeartbeat(); beat.GetStatus() != nil {
			t.Error("the same change was reported twice")
		}
	})
}

func TestBrokenSessionTouchesNothingAndReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		close(s.end)
		s = n.join()
		if got := s.said("a").GetPhase(); got != "running" {
			t.Errorf("hello of the next session says that the replica is %q", got)
		}
		if s.hello.GetEpoch() != 1 {
			t.Errorf("hello has epoch %d", s.hello.GetEpoch())
		}
		s.send(t, full(assignment("a")))
		synctest.Wait()
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("started %v", got)
		}
	})
}

func TestReplicasRunWithoutServersForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.await(t, "a", "running")
		n.server.setAway(true)
		close(s.end)
		time.Sleep(time.Hour)
		n.tasks.exit("a-1", driver.Exit{Code: 1})
		n.tasks.awaitStart("a-2") // the policy applies without a server
		time.Sleep(time.Hour)
		tries := n.server.attempts()
		if low, high := 2*3600/5, 2*3600/2; tries < low || tries > high {
			t.Errorf("tried %d times in two hours; every 2.5 to 5 seconds is right", tries)
		}
		n.server.setAway(false)
		s = n.join()
		if got := s.said("a"); got.GetPhase() != "running" || got.GetRestarts() != 1 || got.GetLastExit().GetCode() != 1 {
			t.Errorf("hello says %v", got)
		}
	})
}

func TestOlderEpochIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, &v1.Assignments{Epoch: 7, Full: true, Assign: []*v1.Assignment{assignment("a")}})
		s.await(t, "a", "running")
		n.crash()

		n.start()
		s = n.join()
		if s.hello.GetEpoch() != 7 {
			t.Errorf("the epoch was forgotten: %d", s.hello.GetEpoch())
		}
		s.send(t, &v1.Assignments{Epoch: 6, Full: true, Assign: []*v1.Assignment{assignment("b")}})
		synctest.Wait()
		if got := n.tasks.ids(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("after assignments of an older epoch there are %v", got)
		}
		if isClosed(n.agent.Ready()) {
			t.Error("ready by assignments that were ignored")
		}
	})
}

func TestFullSetRemovesWhatItDoesNotName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b")))
		s.await(t, "a", "running")
		s.await(t, "b", "running")
		close(s.end)
		s = n.join()
		s.send(t, full(assignment("b")))
		s.await(t, "a", "stopped")
		synctest.Wait()
		if got := n.tasks.ids(); !slices.Equal(got, []string{"b-1"}) {
			t.Errorf("there are %v", got)
		}
		close(s.end)
		if s = n.join(); s.said("a") != nil {
			t.Error("the removed replica is still known")
		}
	})
}

func TestDeltaRemovesOnlyWhatItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("b")))
		s.await(t, "b", "running")
		s.send(t, &v1.Assignments{Epoch: 1, Remove: []string{"a"}, Assign: []*v1.Assignment{assignment("c")}})
		s.await(t, "c", "running")
		synctest.Wait()
		if got := n.tasks.ids(); !slices.Equal(got, []string{"b-1", "c-1"}) {
			t.Errorf("there are %v", got)
		}
	})
}

func TestAssignmentWithoutAProperUIDIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("../../etc"), assignment("a")))
		s.await(t, "a", "running")
		if got := n.tasks.started(); !slices.Equal(got, []string{"a-1"}) {
			t.Errorf("started %v", got)
		}
	})
}

// A node may have more replicas than fit into one message.
func TestSessionOfAFullNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		const replicas, padding = 2*maxReports + 500, 4 << 10 // 10 MiB
		message := full()
		for i := range replicas {
			a := assignment(fmt.Sprint("r", i), func(w *v1.WorkloadSpec) {
				w.Env = map[string]string{"PADDING": strings.Repeat("x", padding)}
			})
			a.Replica.Status = &v1.ReplicaStatus{Phase: "completed"} // needs no work
			message.Assign = append(message.Assign, a)
		}
		s.send(t, message)
		for i := range replicas {
			s.await(t, fmt.Sprint("r", i), "completed")
		}
		close(s.end)
		s = n.join()
		told := map[string]bool{}
		tell := func(reports []*v1.ReplicaReport) {
			if len(reports) > maxReports {
				t.Errorf("one message tells of %d replicas", len(reports))
			}
			for _, report := range reports {
				told[report.GetUid()] = true
			}
		}
		for tell(s.hello.GetReplicas()); len(told) < replicas; {
			up := <-s.ups
			if up.GetReport() == nil {
				t.Fatalf("after %d of %d replicas came %v", len(told), replicas, up)
			}
			tell(up.GetReport().GetReplicas())
		}
	})
}

func TestReportsKeepOnlyTheNewestOfEachReplica(t *testing.T) {
	r := newReports()
	for _, phase := range []string{"preparing", "running", "backoff"} {
		r.add(&v1.ReplicaReport{Uid: "a", Status: &v1.ReplicaStatus{Phase: phase}})
		r.add(&v1.ReplicaReport{Uid: "b", Status: &v1.ReplicaStatus{Phase: phase}})
	}
	<-r.wake
	got := r.take()
	if len(got) != 2 || got[0].GetUid() != "a" || got[0].GetStatus().GetPhase() != "backoff" {
		t.Errorf("took %v", got)
	}
	if len(r.take()) != 0 {
		t.Error("the same reports were taken twice")
	}
}
