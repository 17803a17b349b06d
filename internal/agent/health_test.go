package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// file is a program's opinion of itself: a probe with `test -e` succeeds while it exists.
type file struct {
	t    *testing.T
	path string
}

func newFile(t *testing.T) file { return file{t, filepath.Join(t.TempDir(), "well")} }

func (f file) set(exists bool) {
	f.t.Helper()
	err := os.Remove(f.path)
	if exists {
		err = os.WriteFile(f.path, nil, 0o600)
	}
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
}

func (f file) probe() *v1.Probe {
	return &v1.Probe{Exec: &v1.ExecProbe{Command: []string{"sh", "-c", "test -e " + f.path + " || { echo unwell; exit 3; }"}}, Period: "200ms", Timeout: "30s", Failures: 2}
}

// A replica with a port gets no traffic before it listens, and is steady 3 s after its start.
func TestReplicaServesOnceItListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.deaf.Store(true)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", published)))
		if got := s.await(t, "a", spec.PhaseRunning); spec.ServesNow(got) {
			t.Errorf("a program that was just started serves: %v", got)
		}
		began := time.Now()
		got := s.awaitStatus(t, "a", "explained", func(st *v1.ReplicaStatus) bool { return strings.Contains(st.GetUnready(), "listen") })
		if got.GetUnready() != "It does not listen on port 80 yet." || n.network.String() != "[a]" {
			t.Errorf("before it listens: %v, ports lead to %s", got, n.network)
		}
		n.deaf.Store(false)
		if got := s.awaitReady(t, "a"); !got.GetSettling() && time.Since(began) < 3*time.Second || n.network.String() != "[a*]" {
			t.Errorf("when it listens: %v, ports lead to %s", got, n.network)
		}
		s.awaitStatus(t, "a", "steady", func(st *v1.ReplicaStatus) bool { return spec.ServesNow(st) && !st.GetSettling() })
		if passed := time.Since(began); passed < 2900*time.Millisecond {
			t.Errorf("it was steady after %s", passed)
		}
	})
}

// A full disk does not keep a replica from serving.
func TestReplicaServesOnAFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("mounts, which needs root; make test runs it")
	}
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		fill, free := smallDisk(t, n.dir)
		n.deaf.Store(true)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", published)))
		s.await(t, "a", spec.PhaseRunning)
		fill()
		n.deaf.Store(false)
		if s.awaitReady(t, "a"); n.network.String() != "[a*]" {
			t.Errorf("ports lead to %s", n.network)
		}
		free()
	})
}

func TestReplicaWithoutPortsServesAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a"), assignment("job", func(w *v1.WorkloadSpec) { w.Kind, w.Restart = spec.KindJob, &v1.Restart{Policy: "never"} })))
		if got := s.await(t, "job", spec.PhaseRunning); !spec.ServesNow(got) || got.GetSettling() {
			t.Errorf("a job serves at once, got %v", got)
		}
		s.await(t, "a", spec.PhaseRunning)
		began := time.Now()
		s.awaitReady(t, "a")
		within(t, "the minimum uptime", time.Since(began), time.Second, time.Second+100*time.Millisecond)
	})
}

// Readiness goes off and on; each change reaches the network, the server and the events.
func TestReadinessGatesTraffic(t *testing.T) {
	n := newNode(t)
	well := newFile(t)
	n.start()
	s := n.join()
	s.send(t, full(assignment("a", published, func(w *v1.WorkloadSpec) { w.Probes = &v1.Probes{Readiness: well.probe()} })))
	got := s.awaitStatus(t, "a", "unready", func(st *v1.ReplicaStatus) bool { return st.GetFailedProbe() != nil })
	if f := got.GetFailedProbe(); spec.ServesNow(got) || f.GetProbe() != "readiness" || f.GetOutput() != "unwell" || f.GetReason() != "command sh exited with code 3" {
		t.Errorf("before it is ready: %v", got)
	}
	well.set(true)
	if got := s.awaitReady(t, "a"); !got.GetSettling() || n.network.String() != "[a*]" {
		t.Errorf("it serves, and has yet to prove itself: %v, ports lead to %s", got, n.network)
	}
	well.set(false)
	got = s.awaitStatus(t, "a", "unready", func(st *v1.ReplicaStatus) bool { return !spec.ServesNow(st) })
	if got.GetUnready() != "Its readiness probe failed: command sh exited with code 3." || n.network.String() != "[a]" || got.GetRestarts() != 0 {
		t.Errorf("without readiness: %v, ports lead to %s", got, n.network)
	}
	well.set(true)
	s.awaitReady(t, "a")
}

// A replica that was ready stays ready when the agent is restarted, also while no server is there.
func TestReadyReplicaStaysReadyAfterACrashOfTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", published)))
		s.awaitReady(t, "a")
		n.crash()
		n.deaf.Store(true) // a ready replica is not asked again
		n.start()
		s = n.join()
		if got := s.said("a"); !spec.ServesNow(got) {
			t.Errorf("after a restart of the agent: %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n.network.String() != "[a*]" {
			t.Errorf("ports lead to %s", n.network)
		}
	})
}

func TestLivenessFailureRestartsByThePolicy(t *testing.T) {
	for policy, phase := range map[string]string{"always": spec.PhaseRunning, "on-failure": spec.PhaseRunning, "never": spec.PhaseFailed} {
		t.Run(policy, func(t *testing.T) {
			n := newNode(t)
			well := newFile(t)
			well.set(true)
			n.start()
			s := n.join()
			s.send(t, full(assignment("a", restart(policy, "", ""), func(w *v1.WorkloadSpec) { w.Probes = &v1.Probes{Liveness: well.probe()} })))
			s.awaitReady(t, "a")
			well.set(false)
			got := s.awaitStatus(t, "a", "ended", func(st *v1.ReplicaStatus) bool { return st.GetLastExit() != nil && st.GetPhase() == phase })
			const want = "Its liveness probe failed 2 times in a row: command sh exited with code 3. Output: unwell"
			if got.GetLastExit().GetReason() != want {
				t.Errorf("the reason is %q", got.GetLastExit().GetReason())
			}
			if restarted := len(n.tasks.started()) > 1; restarted != (phase == spec.PhaseRunning) {
				t.Errorf("started %v", n.tasks.started())
			}
			if got := n.tasks.stopped(); len(got) == 0 || got[0] != "a-1 SIGTERM 10s" {
				t.Errorf("stops: %v", got)
			}
		})
	}
}

func TestStartupFailureRestartsAndBlocksOtherProbes(t *testing.T) {
	n := newNode(t)
	well, alive := newFile(t), newFile(t)
	n.start()
	s := n.join()
	s.send(t, full(assignment("a", func(w *v1.WorkloadSpec) {
		w.Probes = &v1.Probes{Startup: well.probe(), Liveness: alive.probe()}
	})))
	got := s.awaitRestart(t, "a", 1)
	if reason := got.GetLastExit().GetReason(); !strings.HasPrefix(reason, "Its startup probe failed 2 times in a row") {
		t.Errorf("the reason is %q", reason)
	}
	alive.set(true)
	well.set(true)
	s.awaitReady(t, "a")
}

// Without servers, the node's own balancing leaves out a replica that is not ready, and takes it back.
func TestNodeBalancesByItsOwnReadiness(t *testing.T) {
	n := newNode(t)
	n.mesh = newFakeMesh()
	well := newFile(t)
	well.set(true)
	n.start()
	s := n.join()
	s.send(t, full(assignment("a", published, func(w *v1.WorkloadSpec) { w.Probes = &v1.Probes{Readiness: well.probe()} })))
	address := s.awaitReady(t, "a").GetAddresses()
	shop := shopService("1", "api", "10.128.0.1")
	shop.Endpoints[0].Addresses = address
	sendNetwork(t, s, &v1.Network{Full: true, Services: []*v1.NetworkService{shop}})
	ready := func(want bool) {
		n.mesh.until(func() bool {
			e := n.mesh.services["api"].Endpoints
			return len(e) == 1 && e[0].Ready == want
		})
	}
	ready(true)
	close(s.end)
	n.server.setAway(true)
	well.set(false)
	ready(false)
	well.set(true)
	ready(true)
}

// The command of a probe is killed at the timeout.
func TestHangingProbeCommandIsKilled(t *testing.T) {
	n := newNode(t)
	n.start()
	s := n.join()
	s.send(t, full(assignment("a", func(w *v1.WorkloadSpec) {
		w.Probes = &v1.Probes{Readiness: &v1.Probe{Exec: &v1.ExecProbe{Command: []string{"sleep", "1000"}}, Timeout: "50ms"}}
	})))
	got := s.awaitStatus(t, "a", "unready", func(st *v1.ReplicaStatus) bool { return st.GetFailedProbe() != nil })
	if reason := got.GetFailedProbe().GetReason(); reason != "there was no answer within 50ms" {
		t.Errorf("the reason is %q", reason)
	}
	n.tasks.mu.Lock()
	first := n.tasks.execs[0]
	n.tasks.mu.Unlock()
	<-first.ended
}

// Events about a flapping replica are rare, and say how often it happened.
func TestFlappingReplicaSendsFewEvents(t *testing.T) {
	r := &replica{replicaEnv: &replicaEnv{reports: newReports()}, uid: "a"}
	synctest.Test(t, func(t *testing.T) {
		flap := func(unready string) {
			next := &v1.ReplicaStatus{Phase: spec.PhaseRunning, Unready: unready}
			r.announce(next, "")
			r.rec.Status = next
		}
		flap("It was just started.")
		for range 5 {
			flap("")
			flap("It is busy.")
		}
		time.Sleep(2 * time.Minute)
		flap("")
		flap("It is busy.")
		var got []string
		for _, e := range r.reports.takeEvents() {
			got = append(got, e.GetReason()+": "+e.GetMessage())
		}
		want := []string{
			"Unready: It gets no traffic: It is busy.", "Ready: It serves again after 0s.",
			"Unready: It gets no traffic: It is busy. That happened 4 more times since the last event.",
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("got %q", got)
		}
	})
}
