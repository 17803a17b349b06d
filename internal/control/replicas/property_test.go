package replicas

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// step is something that happens to a world.
type step struct {
	what     string
	workload string
	node     string
	replicas int32
	cpu      string
	priority int32
	keep     int32 // minAvailable
}

var (
	nodeNames     = []string{"n1", "n2", "n3"}
	workloadNames = []string{"w1", "w2", "w3"}
)

func drawSteps(t *rapid.T) []step {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			what:     rapid.SampledFrom([]string{"create", "scale", "restart", "delete", "offline", "draining", "ready", "quota", "taint", "untaint", "tick", "work", "work"}).Draw(t, "what"),
			workload: rapid.SampledFrom(workloadNames).Draw(t, "workload"),
			node:     rapid.SampledFrom(nodeNames).Draw(t, "node"),
			replicas: rapid.Int32Range(0, 6).Draw(t, "replicas"),
			cpu:      rapid.SampledFrom([]string{"500m", "1", "3"}).Draw(t, "cpu"),
			priority: rapid.SampledFrom([]int32{100, 0, 200, 300, 600}).Draw(t, "priority"),
			keep:     rapid.Int32Range(0, 2).Draw(t, "keep"),
		}
	}), 1, 60).Draw(t, "steps")
}

func (w *world) take(s step) {
	switch s.what {
	case "create":
		if w.snap().WorkloadByName("default", s.workload) == nil {
			w.addRanked(s.workload, s.replicas, s.cpu, s.priority, s.keep)
		}
	case "scale":
		w.scale(s.workload, s.replicas)
	case "restart":
		w.restart(s.workload)
	case "delete":
		w.delete(s.workload)
	case "offline", "draining", "ready":
		w.setNode(s.node, s.what)
	case "quota":
		w.setQuota(s.replicas, s.cpu)
	case "taint":
		w.taint(s.node, &v1.Taint{Key: "out", Effect: scheduler.NoExecute})
	case "untaint":
		w.taint(s.node)
	case "tick":
		w.tickCarefully()
	case "work":
		w.work()
	}
}

// tickCarefully checks that a tick places nothing on a node that is not ready, and nothing
// beyond the quota.
func (w *world) tickCarefully() {
	w.t.Helper()
	before := w.snap()
	w.tick()
	w.checkPreemptions(before)
	w.checkHeld(before)
	for r := range w.snap().Replicas("", "") {
		placed := r.GetSpec().GetNodeUid() != "" && before.Replica(r.GetMetadata().GetUid()).GetSpec().GetNodeUid() == ""
		if n := before.Node(r.GetSpec().GetNodeUid()); placed && n.GetStatus().GetState() != "ready" {
			w.t.Fatalf("%s was placed on %s, which is %s", r.GetMetadata().GetName(), n.GetMetadata().GetName(), n.GetStatus().GetState())
		}
		if placed {
			w.checkQuota(r)
		}
	}
}

// checkCapacity: no node is promised more than it has.
func (w *world) checkCapacity() {
	w.t.Helper()
	for n := range w.snap().Nodes("") {
		requested := Placement{}.Requested(w.snap(), n.GetMetadata().GetUid())
		has, _ := spec.ParseCPU(n.GetStatus().GetCapacity().GetCpu())
		if wants, _ := spec.ParseCPU(requested.GetCpu()); wants > has {
			w.t.Fatalf("node %s has %s CPU and has promised %s", n.GetMetadata().GetName(), n.GetStatus().GetCapacity().GetCpu(), requested.GetCpu())
		}
	}
}

// checkSettled: every workload is as desired, or the nodes have no room for it.
func (w *world) checkSettled() {
	w.t.Helper()
	for of := range w.snap().Workloads("", "") {
		name, uid := of.GetMetadata().GetName(), of.GetMetadata().GetUid()
		if of.GetMetadata().GetDeleteTime() != nil {
			w.t.Fatalf("workload %s is still being deleted", name)
		}
		running, pending := 0, 0
		for r := range w.snap().ReplicasOf(uid) {
			switch {
			case spec.Ended(r.GetStatus().GetPhase()):
				continue
			case r.GetSpec().GetRevisionUid() != of.GetStatus().GetRevisionUid() && Placement{}.ShortOfQuota(w.snap(), uid) != "":
				running++ // the quota has no room for its successor
			case r.GetSpec().GetRevisionUid() != of.GetStatus().GetRevisionUid() && of.GetSpec().GetMinAvailable() >= of.GetSpec().GetReplicas():
				running++ // it may not make room for its successor
			case r.GetSpec().GetRevisionUid() != of.GetStatus().GetRevisionUid():
				w.t.Fatalf("replica %s is still of an older revision", r.GetMetadata().GetName())
			case r.GetStatus().GetPhase() == spec.PhaseRunning:
				running++
			case r.GetStatus().GetPhase() == spec.PhasePending:
				pending++
			default:
				w.t.Fatalf("replica %s is still %s", r.GetMetadata().GetName(), r.GetStatus().GetPhase())
			}
		}
		if running+pending != int(of.GetSpec().GetReplicas()) {
			w.t.Fatalf("workload %s has %d running and %d pending replicas, want %d", name, running, pending, of.GetSpec().GetReplicas())
		}
		if why := (Placement{}).Explain(w.snap(), uid); pending > 0 && len(why) == 0 && (Placement{}).ShortOfQuota(w.snap(), uid) == "" {
			w.t.Fatalf("workload %s has %d pending replicas although nothing speaks against any node", name, pending)
		}
	}
}

func play(t fatal, steps []step) *world {
	w := newWorld(t)
	for i, name := range nodeNames {
		w.addNode(name, fmt.Sprint(2+2*i))
	}
	for _, s := range steps {
		w.take(s)
		w.checkCapacity()
	}
	for _, name := range nodeNames {
		w.setNode(name, "ready")
		w.taint(name)
	}
	w.settle()
	w.checkCapacity()
	w.checkSettled()
	return w
}

func TestAnyWorldSettlesAsDesired(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		steps := drawSteps(t)
		first := play(t, steps)
		if again := play(t, steps); !bytes.Equal(first.saved(), again.saved()) {
			t.Fatalf("the same steps lead to another world")
		}
		for _, name := range workloadNames {
			first.delete(name)
		}
		first.settle()
		var left []*v1.Replica
		for r := range first.snap().Replicas("", "") {
			if spec.Live(r.GetStatus().GetPhase()) {
				left = append(left, r)
			}
		}
		for of := range first.snap().Workloads("", "") {
			t.Fatalf("workload %s survives its deletion", of.GetMetadata().GetName())
		}
		if len(left) > 0 {
			t.Fatalf("replicas survive their workloads: %v", left)
		}
	})
}
