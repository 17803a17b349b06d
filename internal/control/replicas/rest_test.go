package replicas

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// finite fails a test in which the loop proposes forever.
type finite struct {
	*driven
	left int
}

func (f *finite) Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error) {
	if f.left--; f.left < 0 {
		f.t.Fatalf("the loop does not come to rest; the last change is %v", tx)
	}
	return f.driven.Propose(ctx, tx)
}

// driveFinitely drives a loop that must come to rest.
func driveFinitely(w *world) *driven {
	d := drive(w)
	d.loop.Proposer = &finite{driven: d, left: 2000}
	return d
}

// wantAtRest checks that the loop has missed nothing: examining everything again changes
// nothing.
func (w *world) wantAtRest() {
	w.t.Helper()
	before := w.snap()
	if !w.tick() {
		return
	}
	for r := range w.snap().Replicas("", "") {
		if old := before.Replica(r.GetMetadata().GetUid()); !proto.Equal(old, r) {
			w.t.Fatalf("the loop rests although something is to be done: %v becomes %v", old, r)
		}
	}
	w.t.Fatalf("the loop rests although something is to be done")
}

// anyNodes is a world with nodes of random sizes, and a loop that must come to rest.
func anyNodes(t *rapid.T) *driven {
	w := newWorld(t)
	for _, name := range nodeNames {
		w.addNode(name, rapid.SampledFrom([]string{"1", "2", "3", "4"}).Draw(t, "size"))
	}
	return driveFinitely(w)
}

// anyAction does something to a world in which workloads have rules about each other.
func anyAction(t *rapid.T, w *world) {
	node := rapid.SampledFrom(nodeNames).Draw(t, "node")
	switch what := rapid.SampledFrom([]string{"edit", "edit", "edit", "edit", "taint", "untaint", "offline", "draining", "ready"}).Draw(t, "action"); what {
	case "edit":
		anyEdit(t, w)
	case "taint":
		w.taint(node, &v1.Taint{Key: "out", Effect: rapid.SampledFrom([]string{"NoSchedule", "NoExecute"}).Draw(t, "effect")})
	case "untaint":
		w.taint(node)
	default:
		w.setNode(node, what)
	}
}

// anyEdit edits a workload, or the cluster's configuration.
func anyEdit(t *rapid.T, w *world) {
	name := rapid.SampledFrom([]string{"w1", "w2", "w3", "w4"}).Draw(t, "workload")
	of := w.snap().WorkloadByName("default", name)
	cpu := rapid.SampledFrom([]string{"500m", "1", "1500m", "2"}).Draw(t, "cpu")
	if of == nil {
		w.change(func(b *state.Batch) {
			made := anyRanked(t, w, name, cpu)
			w.revise(b, made)
			b.Create(made)
		})
		return
	}
	service := of.GetSpec().GetKind() == ""
	switch rapid.SampledFrom([]string{"scale", "restart", "restart", "resize", "keep", "rank", "delete", "quota", "overcommit"}).Draw(t, "edit") {
	case "scale":
		if service {
			w.scale(name, anyCount(t))
		}
	case "restart":
		w.restart(name)
	case "resize":
		w.edit(name, func(b *state.Batch, of *v1.Workload) {
			of.Spec.Resources.Requests.Cpu = cpu
			w.revise(b, of)
		})
	case "keep":
		if service {
			w.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = rapid.Int32Range(0, 2).Draw(t, "keep") })
		}
	case "rank":
		w.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Spec.Priority = proto.Int32(anyPriority(t)) })
	case "delete":
		w.delete(name)
	case "quota":
		w.quota(&v1.Quota{Cpu: rapid.SampledFrom([]string{"", "2", "4", "6"}).Draw(t, "quota")})
	case "overcommit":
		w.configure(&v1.ClusterSpec{Overcommit: &v1.Overcommit{Cpu: new(rapid.SampledFrom([]int32{100, 150, 200}).Draw(t, "overcommit"))}})
	}
}

// anyCount draws a number of replicas: a few, or more than fit into one tick.
func anyCount(t *rapid.T) int32 {
	if rapid.IntRange(0, 19).Draw(t, "many") == 0 {
		return rapid.Int32Range(maxReplicas-2, maxReplicas+100).Draw(t, "replicas")
	}
	return rapid.Int32Range(0, 4).Draw(t, "replicas")
}

func anyPriority(t *rapid.T) int32 {
	return rapid.SampledFrom([]int32{0, 100, 200, 300, 600}).Draw(t, "priority")
}

func anyRanked(t *rapid.T, w *world, name, cpu string) *v1.Workload {
	count := anyCount(t)
	if count > 4 {
		cpu = "10m"
	}
	made := newWorkload(w.newUID(), name, count, cpu)
	made.Spec.Priority = proto.Int32(anyPriority(t))
	switch made.Spec.Kind = rapid.SampledFrom([]string{"", "", "", spec.KindJob, spec.KindDaemon}).Draw(t, "kind"); made.Spec.Kind {
	case spec.KindDaemon:
		made.Spec.Replicas = nil
	case spec.KindJob:
		made.Spec.Replicas, made.Spec.Restart = nil, nil
		made.Spec.Job = &v1.Job{Completions: new(max(count, 1)), Parallelism: new(max(count, 1))}
		made.Spec = spec.Normalized(made.Spec)
	default:
		made.Spec.MinAvailable = rapid.Int32Range(0, 1).Draw(t, "keep")
	}
	if rapid.IntRange(0, 3).Draw(t, "ruled") == 0 {
		about := rapid.SampledFrom([]string{"w1", "w2", "w3", "w4"}).Draw(t, "about")
		made.Spec.Placement = &v1.Placement{Affinity: []*v1.Affinity{{Workload: about, Key: "node", Anti: rapid.Bool().Draw(t, "anti")}}}
	}
	return made
}

// Whatever happens in whatever order, the loop comes to rest and has missed nothing.
func TestLoopComesToRestAndMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyNodes(t)
		w := d.world
		for range rapid.IntRange(1, 14).Draw(t, "actions") {
			anyAction(t, w)
			switch rapid.IntRange(0, 3).Draw(t, "then") {
			case 0:
				d.react()
			case 1:
				d.react()
				d.work()
				d.react()
			case 2:
				d.rest()
			}
		}
		d.rest()
		w.wantAtRest()
	})
}

// A reservation that its workload gives up is not also cancelled by others in the same
// tick: the two writes would conflict forever.
func TestReservationIsCancelledOnce(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addRanked("batch", 1, "1", 0, 0)
	d := driveFinitely(w)
	d.rest()
	w.addRanked("web", 1, "1", 300, 0)
	d.react() // batch stops for web
	w.restart("web")
	w.addRanked("boss", 1, "1", 600, 0)
	d.rest()
	if all, _ := w.running("boss"); all != 1 {
		t.Errorf("boss does not run: %v", w.where("boss"))
	}
}

// A replica with an affinity rule gets no room beside a replica that is about to end, and
// does not preempt others for it again and again.
func TestNoPreemptionBesideALeavingReplica(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addRanked("low", 1, "1", 0, 0)
	d := driveFinitely(w)
	d.rest()
	near := newWorkload(w.newUID(), "near", 1, "1")
	near.Spec.Priority, near.Spec.Placement = proto.Int32(600), &v1.Placement{Affinity: []*v1.Affinity{{Workload: "low", Key: "node"}}}
	w.change(func(b *state.Batch) { w.revise(b, near); b.Create(near) })
	d.rest()
	w.addRanked("mid", 1, "1", 300, 0)
	d.rest()
	if all, _ := w.running("mid"); all != 1 || len(w.messagesOf("Preempted")) != 1 {
		t.Errorf("%d of mid run, and low was preempted %d times", all, len(w.messagesOf("Preempted")))
	}
}

// An update continues after a successor has lost its room.
func TestUpdateContinuesAfterLosingItsRoom(t *testing.T) {
	for what, lose := range map[string]func(w *world, node string){
		"its node is lost":               func(w *world, node string) { w.setNode(node, "offline") },
		"its node takes none":            func(w *world, node string) { w.taint(node, &v1.Taint{Key: "x", Effect: "NoSchedule"}) },
		"another workload gets the room": func(w *world, _ string) { w.addRanked("boss", 1, "1", 300, 0) },
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.addNode("a", "1")
			w.addNode("b", "1")
			w.addRanked("web", 2, "1", 200, 1)
			d := driveFinitely(w)
			d.rest()
			w.restart("web")
			d.react()
			for _, r := range w.of("web") {
				if r.GetSpec().GetDesired() == spec.DesiredStopped {
					lose(w, r.GetSpec().GetNode())
				}
			}
			d.rest()
			w.wantAtRest()
		})
	}
}

// A waiting update is woken by changes that may help: a new neighbour, or a lower
// minAvailable.
func TestBlockedUpdateIsWokenByOthers(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 1, "1")
	d := driveFinitely(w)
	d.rest()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Placement = &v1.Placement{Affinity: []*v1.Affinity{{Workload: "db", Key: "node"}}}
		w.revise(b, of)
	})
	d.rest()
	w.addWorkload("db", 1, "1")
	d.rest()
	if _, current := w.running("web"); current != 1 {
		t.Error("db is there, and web is not updated")
	}

	w = newWorld(t)
	w.addNode("a", "4")
	w.addRanked("svc", 2, "1", 200, 2)
	w.addRanked("web", 1, "2", 300, 0)
	d = driveFinitely(w)
	d.rest()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Cpu = "3"
		w.revise(b, of)
	})
	d.rest()
	w.edit("svc", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = 1 })
	d.rest()
	if _, current := w.running("web"); current != 1 {
		t.Error("one of svc may go, and web is not updated")
	}
}

// If many nodes have an outdated replica and the successor fits on only one of them, that
// one is found.
func TestOnlyNodeForAnUpdateIsFound(t *testing.T) {
	w := newWorld(t)
	d := driveFinitely(w)
	for i := range maxTries + 4 {
		w.addNode(string(rune('a'+i)), "1")
		if i == 0 {
			w.addWorkload("web", 0, "1")
		}
		w.scale("web", int32(i+1))
		d.rest()
	}
	all := w.of("web")
	w.editNode(all[len(all)-1].GetSpec().GetNode(), func(n *v1.Node) { n.Status.Capacity.Cpu = "2" })
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Cpu = "1500m"
		w.revise(b, of)
	})
	d.rest()
	if _, current := w.running("web"); current != 1 {
		t.Errorf("%d are updated", current)
	}
}

// Scaling up during an update creates replicas at once. The successor keeps its room.
func TestScalingUpDoesNotWaitForAnUpdate(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.addWorkload("web", 3, "1")
	d := driveFinitely(w)
	d.rest()
	w.restart("web")
	d.react()
	w.scale("web", 4)
	d.react()
	many := 0
	for _, r := range w.of("web") {
		if placement.Wanted(r) {
			many++
		}
	}
	if many != 5 {
		t.Errorf("%d are wanted; 4 are desired, and one more starts before one stops", many)
	}
}

// A second update with fewer replicas creates no successors for the surplus.
func TestSurplusReplicasGetNoSuccessor(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "3")
	w.addWorkload("web", 1, "1")
	d := driveFinitely(w)
	d.rest()
	w.restart("web")
	d.react()
	made := len(w.of("web"))
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Replicas = proto.Int32(0)
		w.revise(b, of)
	})
	d.rest()
	if now := len(w.of("web")); now != made {
		t.Errorf("%d unwanted replicas were created", now-made)
	}
}

// An outdated replica without a successor leaves for good. Others wait for its room instead
// of preempting.
func TestRoomOfLeavingReplicaIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "2")
	w.addRanked("web", 1, "2", 500, 0)
	d := driveFinitely(w)
	d.rest()
	w.addNode("b", "2")
	w.addRanked("batch", 1, "2", 50, 0)
	d.rest()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Cpu = "8" // fits nowhere
		w.revise(b, of)
	})
	d.rest()
	w.scale("web", 0)
	d.react()
	w.addRanked("mid", 1, "2", 300, 0)
	d.rest()
	if all, _ := w.running("batch"); all != 1 || len(w.messagesOf("Preempted")) > 0 {
		t.Errorf("batch is preempted: %q", w.messagesOf("Preempted"))
	}
}

// The room of a job's outdated replica goes to its successor, too.
func TestJobKeepsItsRoomInAnUpdate(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addWorkload("early", 0, "1")
	w.addKind("work", spec.KindJob, "1", nil)
	d := driveFinitely(w)
	d.rest()
	w.scale("early", 1)
	d.rest()
	w.restart("work")
	d.rest()
	if _, current := w.running("work"); current != 1 {
		t.Errorf("the job has lost its room: %v, %v", w.where("work"), w.where("early"))
	}
}

// A machine may return quickly with another kernel or agent. Rules about such facts are
// evaluated again, and so are workloads that wait for a wider link.
func TestChangedNodeFactsAreFollowed(t *testing.T) {
	newer := []*v1.LabelRule{{Key: spec.LabelKernel, Operator: "version", Values: []string{">=6"}}}
	kernel := func(version string) func(*v1.Node) {
		return func(n *v1.Node) { n.Status.Info = &v1.NodeInfo{Kernel: version} }
	}

	w := newWorld(t)
	w.addNode("a", "4")
	w.editNode("a", kernel("5.10"))
	w.addKind("probe", spec.KindDaemon, "1", func(s *v1.WorkloadSpec) { s.Placement = &v1.Placement{Require: newer} })
	w.addWorkload("web", 1, "1")
	d := driveFinitely(w)
	d.rest()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Placement = &v1.Placement{Require: newer}
		w.revise(b, of)
	})
	d.rest()
	w.editNode("a", kernel("6.1"))
	d.rest()
	if all, _ := w.running("probe"); all != 1 {
		t.Error("the daemon is not on the node that suits it now")
	}
	if _, current := w.running("web"); current != 1 {
		t.Error("the update waits although the node suits it now")
	}

	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Bandwidth = "500M"
		w.revise(b, of)
	})
	d.rest()
	w.editNode("a", func(n *v1.Node) { n.Spec.Bandwidth = "1G" })
	d.rest()
	if _, current := w.running("web"); current != 1 {
		t.Error("the update waits although the link is wide enough now")
	}
}

// More replicas on lost nodes than a tick can cover, without another place, do not block
// later workloads.
func TestUncoveredReplicasBlockNoOthers(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("many", maxReplicas+8, "20m")
	d := driveFinitely(w)
	d.rest()
	w.addNode("b", "1")
	w.addRanked("web", 1, "1", 0, 0)
	d.rest()
	w.setNode("a", "offline")
	d.rest()
	w.restart("web")
	d.rest()
	w.wantWhere("web", "b running")
	w.wantAtRest()
}

// More evicted replicas than a tick can cover leave their node, although there is no other
// place.
func TestUncoveredReplicasStillLeaveATaintedNode(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addTolerant("many", maxReplicas+8, "10m", "always", 30)
	d := driveFinitely(w)
	d.rest()
	w.taint("a", out(time.Now().Add(-time.Hour)))
	d.rest()
	if all, _ := w.running("many"); all != 0 {
		t.Errorf("%d are left on the node", all)
	}
}

// A replica that needs the room of more replicas than a tick moves gets it.
func TestLargeReplicaGetsTheRoomOfMany(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("many", 2*maxReplicas, "10m", 0, 0)
	d := driveFinitely(w)
	d.rest()
	w.addRanked("web", 1, "4", 300, 0)
	d.rest()
	w.wantWhere("web", "a running")
	if all, _ := w.running("many"); all != 0 {
		t.Errorf("%d of many run beside it", all)
	}
}
