package agent

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/driver"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/telemetry"
)

// memory is what a workload requests.
func memory(request string) func(*v1.WorkloadSpec) {
	return func(w *v1.WorkloadSpec) {
		w.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Memory: request}}
	}
}

// uses lets replicas use so many MiB. Memory is short from then on until the replica with the uid has ended.
func (n *node) uses(hog string, mebibytes map[string]uint64) {
	n.tasks.mu.Lock()
	defer n.tasks.mu.Unlock()
	n.tasks.stats = func(id string) driver.Stats {
		uid, _, _ := strings.Cut(id, "-")
		return driver.Stats{At: time.Now(), MemoryBytes: mebibytes[uid] * mebibyte}
	}
	n.machine.mu.Lock()
	defer n.machine.mu.Unlock()
	n.machine.memoryUsed = 8<<30 - 92*mebibyte
	go func() {
		<-n.agent.replica(hog).end()
		n.machine.mu.Lock()
		defer n.machine.mu.Unlock()
		n.machine.memoryUsed = 1 << 30
	}()
}

// awaitPressure waits until a heartbeat says whether the node has MemoryPressure.
func (s *session) awaitPressure(has bool) {
	for {
		up := <-s.ups
		s.keep(up.GetReport().GetReplicas())
		s.events = append(s.events, up.GetReport().GetEvents()...)
		for _, c := range up.GetHeartbeat().GetStatus().GetConditions() {
			if c.GetType() == "MemoryPressure" && c.GetStatus() == has {
				return
			}
		}
	}
}

func TestShortageOfMemoryEvictsTheOverusingReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		registry := telemetry.NewRegistry()
		n.metrics = telemetry.NewAgent(registry)
		n.machine.conditions = []*v1.Condition{{Type: "MemoryPressure"}}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", memory("512Mi")), assignment("b", memory("128Mi"))))
		s.awaitReady(t, "a")
		s.awaitReady(t, "b")
		n.uses("b", map[string]uint64{"a": 500, "b": 700})
		s.awaitPressure(true) // known before the replica has ended
		got := s.await(t, "b", "stopped")
		if want := "Evicted: the machine was short of memory (92Mi left), and it used 700Mi with a request of 128Mi."; got.GetReason() != want {
			t.Errorf("the reason is %q, want %q", got.GetReason(), want)
		}
		if stops := n.tasks.stopped(); !slices.Equal(stops, []string{"b-1 SIGTERM 2s"}) {
			t.Errorf("stopped %q", stops)
		}
		// The server has a replacement elsewhere. The node takes nothing new for a while.
		s.send(t, &v1.Assignments{Epoch: 1, Remove: []string{"b"}})
		evicted := time.Now()
		s.awaitPressure(false)
		within(t, "the pressure after the eviction", time.Since(evicted), evictionHold-time.Second, evictionHold+2*time.Second)
		if i := slices.IndexFunc(s.events, func(e *v1.EventReport) bool { return e.GetReason() == "Evicted" }); i < 0 || s.events[i].GetReplicaUid() != "b" {
			t.Errorf("the events are %v", s.events)
		}
		if started := n.tasks.started(); !slices.Equal(sorted(started), []string{"a-1", "b-1"}) {
			t.Errorf("started %q", started)
		}
		want := "# HELP cloudless_agent_evictions_total Replicas that were evicted because memory or disk was short, or because they had written more than they may.\n# TYPE cloudless_agent_evictions_total counter\ncloudless_agent_evictions_total 1\n"
		if err := testutil.GatherAndCompare(registry.Gatherer(), strings.NewReader(want), "cloudless_agent_evictions_total"); err != nil {
			t.Error(err)
		}
		n.stop()
	})
}

// Without a server nobody replaces the replica, so the node starts it again, even after a restart of the agent.
func TestEvictedReplicaComesBackWithoutServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.awaitReady(t, "a")
		n.server.setAway(true)
		close(s.end)
		n.uses("a", map[string]uint64{"a": 700})
		<-n.agent.replica("a").end()
		evicted := time.Now()
		n.crash()
		n.start()
		n.tasks.awaitStart("a-2")
		within(t, "the absence", time.Since(evicted), evictionPause, evictionPause+time.Second)
		n.server.setAway(false)
		s = n.join()
		s.send(t, full(assignment("a")))
		if got := s.awaitReady(t, "a"); got.GetReason() != "" || got.GetRestarts() != 0 {
			t.Errorf("it is back as %v", got)
		}
		n.stop()
	})
}

// The kernel learns whom to kill first if memory runs out faster than the agent can evict.
func TestTaskHasAnOOMScore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		important := func(w *v1.WorkloadSpec) { w.Priority = new(int32); *w.Priority = 900 }
		s.send(t, full(assignment("a"), assignment("b", important), assignment("c", memory("4Gi"))))
		scores := map[string]int{}
		for _, uid := range []string{"a", "b", "c"} {
			s.await(t, uid, spec.PhaseRunning)
			n.tasks.mu.Lock()
			scores[uid] = n.tasks.byID[uid+"-1"].Resources.OOMScore
			n.tasks.mu.Unlock()
		}
		if scores["a"] <= scores["b"] || scores["a"] <= scores["c"] || scores["b"] <= 0 || scores["c"] <= 0 {
			t.Errorf("the scores are %v", scores)
		}
		n.stop()
	})
}

func sorted(words []string) []string {
	slices.Sort(words)
	return words
}

// writes lets tasks have written so many GiB to their own layers.
func (n *node) writes(gibibytes map[string]int64) {
	n.tasks.mu.Lock()
	defer n.tasks.mu.Unlock()
	n.tasks.stats = func(string) driver.Stats { return driver.Stats{At: time.Now()} }
	n.tasks.written = map[string]int64{}
	for id, many := range gibibytes {
		n.tasks.written[id] = many << 30
	}
}

// disk is what a workload may write.
func disk(request, limit string) func(*v1.WorkloadSpec) {
	return func(w *v1.WorkloadSpec) {
		w.Resources = &v1.Resources{Requests: &v1.ResourceAmounts{Disk: request}, Limits: &v1.ResourceAmounts{Disk: limit}}
	}
}

// A replica may write what it has as a limit, or what it requests, or what the cluster allows to all.
func TestReplicaThatWritesMoreThanItMayIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		all := full(assignment("a"), assignment("b", disk("8Gi", "")), assignment("c", disk("", "1Gi")), assignment("d"))
		all.Disk = &v1.DiskLimits{MaxWritableLayer: 4 << 30, ImageHighPercent: 80, MaxUnpackedImage: 20 << 30}
		s.send(t, all)
		for _, uid := range []string{"a", "b", "c", "d"} {
			s.awaitReady(t, uid)
		}
		n.writes(map[string]int64{"a-1": 3, "b-1": 7, "c-1": 2, "d-1": 5})
		for uid, want := range map[string]string{
			"c": "Evicted: it has written 2Gi to its own layer, and its limit is 1Gi. Write to a volume, or set resources.limits.disk.",
			"d": "Evicted: it has written 5Gi to its own layer, and its limit is 4Gi. Write to a volume, or set resources.limits.disk.",
		} {
			if got := s.await(t, uid, "stopped"); got.GetReason() != want {
				t.Errorf("the reason is %q, want %q", got.GetReason(), want)
			}
		}
		if stopped := len(n.tasks.stopped()); stopped != 2 {
			t.Errorf("%d tasks were stopped", stopped)
		}
		n.tasks.mu.Lock()
		if got := n.tasks.byID["a-1"].MaxUnpacked; got != 20<<30 {
			t.Errorf("an image may unpack to %d bytes", got)
		}
		n.tasks.mu.Unlock()
		n.stop()
	})
}

// While the disk fills up, images that nothing uses go first, and no replica has to.
func TestUnusedImagesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.tasks.images = []driver.StoredImage{
			{Ref: "old", Bytes: 20 << 30, LastUse: time.Now().Add(-time.Hour)},
			{Ref: "used", Bytes: 20 << 30, LastUse: time.Now().Add(-time.Hour), InUse: true},
		}
		n.start()
		s := n.join()
		s.send(t, full(assignment("a")))
		s.awaitReady(t, "a")
		n.writes(map[string]int64{"a-1": 1})
		n.machine.mu.Lock()
		n.machine.diskUsed = 90 << 30
		n.machine.mu.Unlock()
		time.Sleep(time.Minute)
		n.tasks.mu.Lock()
		if len(n.tasks.images) != 1 || n.tasks.images[0].Ref != "used" {
			t.Errorf("these images are left: %v", n.tasks.images)
		}
		n.tasks.mu.Unlock()
		if stopped := n.tasks.stopped(); len(stopped) > 0 {
			t.Errorf("stopped %q", stopped)
		}
		n.stop()
	})
}
