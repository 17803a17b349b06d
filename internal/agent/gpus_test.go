package agent

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/agent/machine"
	"github.com/cloudless/cloudless/internal/driver"
)

// cards returns two GPUs of one model and one of another.
func cards() []machine.GPU {
	return []machine.GPU{
		{ID: "0000:01:00.0", Model: "a100", Devices: []string{"/dev/nvidia0", "/dev/nvidiactl"}},
		{ID: "0000:02:00.0", Model: "a100", Devices: []string{"/dev/nvidia1", "/dev/nvidiactl"}},
		{ID: "0000:03:00.0", Model: "tesla-t4", Devices: []string{"/dev/nvidia2", "/dev/nvidiactl"}},
	}
}

func gpu(count int32, model string) func(*v1.WorkloadSpec) {
	return func(s *v1.WorkloadSpec) { s.Resources = &v1.Resources{Gpu: &v1.Gpu{Count: count, Model: model}} }
}

func (n *node) devices(task string) string {
	n.tasks.mu.Lock()
	defer n.tasks.mu.Unlock()
	return strings.Join(n.tasks.byID[task].Devices, " ")
}

// A replica gets the devices of as many cards as it asks for. No two replicas share a card,
// even after the agent is killed.
func TestReplicasGetGPUsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.machine.gpus = cards()
		n.start()
		s := n.join()
		s.send(t, full(assignment("a", gpu(1, "a100"))))
		s.await(t, "a", "running")
		s.send(t, delta(assignment("b", gpu(1, ""))))
		s.await(t, "b", "running")
		s.send(t, delta(assignment("none")))
		s.await(t, "none", "running")
		for task, want := range map[string]string{"a-1": "/dev/nvidia0 /dev/nvidiactl", "b-1": "/dev/nvidia1 /dev/nvidiactl", "none-1": ""} {
			if got := n.devices(task); got != want {
				t.Errorf("%s has %q, want %q", task, got, want)
			}
		}
		n.crash()
		n.start()
		s = n.join()
		s.send(t, full(assignment("a", gpu(1, "a100")), assignment("b", gpu(1, "")), assignment("none"), assignment("c", gpu(1, ""))))
		s.await(t, "c", "running")
		if got := n.devices("c-1"); got != "/dev/nvidia2 /dev/nvidiactl" {
			t.Errorf("the third has %q", got)
		}
		// It keeps its card from attempt to attempt.
		n.tasks.exit("b-1", driver.Exit{Code: 1})
		s.awaitRestart(t, "b", 1)
		if got := n.devices("b-2"); got != "/dev/nvidia1 /dev/nvidiactl" {
			t.Errorf("restarted, it has %q", got)
		}
	})
}

// A replica that finds all cards in use waits without failing, and gets the card of one
// that leaves.
func TestReplicaWaitsForAReleasedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t)
		n.machine.gpus = cards()[:1]
		n.start()
		s := n.join()
		first := assignment("a", gpu(1, ""))
		s.send(t, full(first))
		s.await(t, "a", "running")
		s.send(t, delta(assignment("b", gpu(1, ""), restart("never", "", ""))))
		s.awaitStatus(t, "b", "waiting for a card", func(status *v1.ReplicaStatus) bool {
			return status.GetPhase() == "preparing" && strings.Contains(status.GetReason(), "no GPU is free: it needs 1, and the node has 0 for it")
		})
		s.send(t, delta(stopped(first)))
		s.await(t, "b", "running")
		if got := n.devices("b-1"); got != "/dev/nvidia0 /dev/nvidiactl" {
			t.Errorf("it has %q", got)
		}
		// A replica that has ended for good releases its card.
		n.tasks.exit("b-1", driver.Exit{Code: 1})
		s.await(t, "b", "failed")
		s.send(t, delta(assignment("c", gpu(1, ""))))
		s.await(t, "c", "running")
	})
}

// A card or battery that appears or disappears is reported at once; usage is not.
func TestMachineChangesAreReported(t *testing.T) {
	of := func() *v1.NodeStatus {
		return &v1.NodeStatus{Info: &v1.NodeInfo{Arch: "arm64"}, Capacity: &v1.NodeResources{Gpu: 1}, Gpus: []*v1.NodeGpu{{Id: "a"}}}
	}
	for name, change := range map[string]func(*v1.NodeStatus){
		"a card in the place of another": func(s *v1.NodeStatus) { s.Gpus[0].Id = "b" },
		"a pulled plug":                  func(s *v1.NodeStatus) { s.Info.Battery = true },
		"a slower link":                  func(s *v1.NodeStatus) { s.Capacity.Bandwidth = "10M" },
	} {
		changed := of()
		change(changed)
		if sameButUsage(of(), changed) {
			t.Errorf("%s is no news", name)
		}
	}
	used := of()
	used.Usage = &v1.NodeResources{Cpu: "1"}
	if !sameButUsage(of(), used) {
		t.Error("what is used is news")
	}
}

func TestClaims(t *testing.T) {
	list := cards()
	g := newGPUs(func() []machine.GPU { return list })
	claim := func(replica string, count int32, model string) (ids []string) {
		t.Helper()
		given, err := g.claim(replica, &v1.Gpu{Count: count, Model: model})
		if err != nil && !errors.Is(err, errNoGPU) {
			t.Fatal(err)
		}
		for _, one := range given {
			ids = append(ids, one.ID)
		}
		return ids
	}
	want := func(got []string, ids ...string) {
		t.Helper()
		for i := range ids {
			ids[i] = "0000:" + ids[i] + ":00.0"
		}
		if !slices.Equal(got, ids) {
			t.Errorf("got %v, want %v", got, ids)
		}
	}
	want(claim("t", 1, "T4"), "03")
	want(claim("x", 2, ""), "01", "02")
	want(claim("x", 2, ""), "01", "02") // again
	want(claim("y", 1, ""))
	// A card that fails is replaced by another, the rest stays.
	g.release("t")
	list = list[1:]
	want(claim("x", 2, ""), "02", "03")
	// A replica that asks for fewer after an update releases the others.
	want(claim("x", 1, ""), "02")
	g.hold("earlier", []string{"0000:03:00.0"})
	want(claim("y", 1, ""))
}
