package replicas

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// running counts the running replicas of a workload, and those of its current revision.
func (w *world) running(name string) (all, current int) {
	revision := w.snap().WorkloadByName("default", name).GetStatus().GetRevisionUid()
	for _, r := range w.of(name) {
		if r.GetStatus().GetPhase() == spec.PhaseRunning {
			all++
			if r.GetSpec().GetRevisionUid() == revision {
				current++
			}
		}
	}
	return all, current
}

// An update needs no extra room and leaves none to others, however long they have waited:
// only a workload that may preempt gets its room.
func TestUpdateKeepsItsRoom(t *testing.T) {
	for what, waits := range map[string]int32{"as important": 0, "more important, but not enough to push others out": 100} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			w.addNode("a", "3")
			w.addRanked("early", 0, "1", waits, 0)
			w.addRanked("web", 3, "1", 0, 0)
			d := drive(w)
			d.rest()
			w.scale("early", 3)
			d.rest()
			w.restart("web")
			for d.react(); d.work(); d.react() {
				if all, _ := w.running("web"); all < 2 {
					t.Fatalf("only %d of web run", all)
				}
			}
			if all, current := w.running("web"); all != 3 || current != 3 {
				t.Errorf("%d of web run, %d of them of the new revision", all, current)
			}
			w.wantWhere("early", " pending", " pending", " pending")
		})
	}
}

// Successors are forgotten together with their predecessors.
func TestSuccessorsAreForgotten(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "2")
	w.addWorkload("web", 2, "1")
	d := drive(w)
	d.rest()
	w.restart("web")
	d.rest()
	if len(d.loop.engine.cluster.Successors) != 2 {
		t.Errorf("%v are remembered", d.loop.engine.cluster.Successors)
	}
	w.change(func(b *state.Batch) {
		for _, r := range w.of("web") {
			if spec.Ended(r.GetStatus().GetPhase()) {
				b.Delete(state.KindReplica, r.GetMetadata().GetUid())
			}
		}
	})
	d.rest()
	if len(d.loop.engine.cluster.Successors) != 0 {
		t.Errorf("%v are remembered", d.loop.engine.cluster.Successors)
	}
}

// The successor gets the quota along with the room.
func TestUpdateKeepsItsQuota(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.quota(&v1.Quota{Replicas: new(int64(2))})
	w.addWorkload("early", 0, "1")
	w.addWorkload("web", 2, "1")
	d := drive(w)
	d.rest()
	w.scale("early", 2)
	d.rest()
	w.restart("web")
	for d.react(); d.work(); d.react() {
		n := w.snap().NamespaceByName("default")
		if over := (Placement{}).Used(w.snap(), n).GetOver(); len(over) > 0 {
			t.Fatalf("the update needs %v", over)
		}
	}
	if all, current := w.running("web"); all != 2 || current != 2 {
		t.Errorf("%d of web run, %d of them of the new revision", all, current)
	}
	if warned := w.messagesOf("Unplaced"); len(warned) != 2 { // both of early
		t.Errorf("the events are %q", warned)
	}
}

// Each node keeps the room of a daemon that is updated.
func TestDaemonKeepsItsRoomInAnUpdate(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addNode("b", "1")
	w.addWorkload("early", 0, "1")
	w.addKind("logs", spec.KindDaemon, "1", nil)
	d := drive(w)
	d.rest()
	w.scale("early", 2)
	d.rest()
	w.restart("logs")
	d.rest()
	if all, current := w.running("logs"); all != 2 || current != 2 {
		t.Errorf("%d of logs run, %d of them of the new revision", all, current)
	}
}

// A node without room for a new replica beside the outdated one does not hold up the others,
// even if minAvailable lets no outdated replica make room.
func TestDaemonIsUpdatedWhereThereIsRoom(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addNode("b", "2")
	w.addKind("logs", spec.KindDaemon, "1", func(s *v1.WorkloadSpec) { s.MinAvailable = 2 })
	d := drive(w)
	d.rest()
	w.restart("logs")
	d.rest()
	if all, current := w.running("logs"); all != 2 || current != 1 {
		t.Errorf("%d of logs run, %d of them of the new revision", all, current)
	}
}

// A new replica of a daemon that starts beside the outdated one pushes no other workload out, even
// if another workload takes the free room first and the daemon waits for another node.
func TestDaemonPushesNobodyOutToStartBesideAnOutdatedReplica(t *testing.T) {
	w := newWorld(t)
	w.addNode("full", "1")
	w.addRanked("high", 1, "1", 2000, 0)
	d := drive(w)
	d.rest()
	w.addNode("a", "1")
	w.addNode("b", "2")
	w.addKind("logs", spec.KindDaemon, "1", func(s *v1.WorkloadSpec) { s.Priority, s.MinAvailable = proto.Int32(1000), 2 })
	d.rest()
	w.addRanked("low", 1, "1", 0, 0)
	d.rest()
	w.restart("logs")
	d.rest()
	w.wantWhere("low", "b running")
	if all, current := w.running("logs"); all != 2 || current != 0 {
		t.Fatalf("%d of logs run, %d of them of the new revision", all, current)
	}
	rival := newWorkload(w.newUID(), "rival", 1, "1")
	rival.Spec.Priority = proto.Int32(2000)
	larger := proto.CloneOf(w.snap().NodeByName("b"))
	larger.Status.Capacity.Cpu = "3"
	w.change(func(b *state.Batch) {
		b.Update(larger, larger.GetMetadata().GetVersion())
		w.revise(b, rival)
		b.Create(rival)
	})
	d.rest()
	w.wantWhere("rival", "b running")
	if all := w.of("low"); len(all) != 1 {
		t.Errorf("low was pushed out: %v", all)
	}
}

// A second update during the first one keeps the room of the stopping replica.
func TestSecondUpdateKeepsTheRoom(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addWorkload("early", 0, "1")
	w.addWorkload("web", 1, "1")
	d := drive(w)
	d.rest()
	w.scale("early", 1)
	d.rest()
	w.restart("web")
	d.react()
	successor := w.of("web")[1]
	if want := fmt.Sprintf("waits for %s to end on node a", w.of("web")[0].GetMetadata().GetName()); successor.GetStatus().GetReason() != want {
		t.Errorf("the successor says %q, want %q", successor.GetStatus().GetReason(), want)
	}
	described := w.explained("web", "", false)
	if !strings.Contains(fmt.Sprint(described.GetReplicas()), successor.GetStatus().GetReason()) || strings.Contains(described.GetSummary(), "no place") ||
		described.GetTakingCount() != 1 || len(described.GetHelp()) > 0 {
		t.Errorf("the explanation is %v", described)
	}
	w.restart("web")
	d.rest()
	if _, current := w.running("web"); current != 1 {
		w.wantWhere("web", "a running")
	}
}

// The room of a replica under update belongs to the workload: another of the same priority
// cannot take it, and one of a higher class can. Then the successor waits, and says for
// which workload.
func TestHigherClassTakesTheRoomOfAnUpdate(t *testing.T) {
	for _, ended := range []bool{false, true} {
		for what, test := range map[string]struct {
			priority int32
			taken    bool
		}{"same priority": {200, false}, "higher class": {600, true}} {
			t.Run(fmt.Sprintf("%s/ended %v", what, ended), func(t *testing.T) {
				w := newWorld(t)
				w.addNode("a", "2")
				w.addRanked("web", 2, "1", 200, 1)
				d := drive(w)
				d.rest()
				w.restart("web")
				d.react()
				if ended {
					d.work()
					d.work() // the loop has not run since
				}
				w.addRanked("boss", 1, "1", test.priority, 0)
				d.rest()
				if all, _ := w.running("boss"); (all == 1) != test.taken {
					t.Errorf("%d of boss run", all)
				}
				all, current := w.running("web")
				if !test.taken && (all != 2 || current != 2) {
					t.Errorf("%d of web run, %d of them of the new revision", all, current)
				}
				if test.taken && all != 1 {
					t.Errorf("%d of web run", all)
				}
				for _, r := range w.of("web") {
					if r.GetSpec().GetSucceeds() != "" && !spec.Ended(r.GetStatus().GetPhase()) {
						t.Errorf("%s still waits for another: %s", r.GetMetadata().GetName(), r.GetStatus().GetReason())
					}
				}
			})
		}
	}
}

// A rule of a revision that runs nowhere yet keeps no replica away: a restarted workload
// gets its place again, although a workload beside it waits that wants to be alone from now
// on.
func TestPendingRevisionKeepsNoReplicaAway(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.setZone("a", "z1")
	w.addRanked("db", 1, "1", 300, 0)
	w.addRanked("web", 1, "1", 100, 0)
	d := driveFinitely(w)
	d.rest()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Placement = &v1.Placement{Affinity: []*v1.Affinity{{Workload: "db", Key: "zone", Anti: true}}}
		of.Spec.Replicas = proto.Int32(2)
		w.revise(b, of)
	})
	d.rest()
	w.restart("db")
	d.rest()
	if _, current := w.running("db"); current != 1 {
		t.Errorf("db has lost its place to web: %v, %v", w.where("db"), w.where("web"))
	}
	if all, current := w.running("web"); all != 1 || current != 0 {
		t.Errorf("%d of web run, %d of them beside db although they must not", all, current)
	}
}

// A tick may preempt the replica that it replaces. If that replica changes before the commit, the preemption is left
// out, and so is the successor.
func TestSuccessorIsLeftOutWithTheStopOfItsPredecessor(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("batch", 1, "4", 100, 0)
	w.tick()
	w.work()
	w.work() // it runs
	w.restart("batch")
	w.addRanked("web", 1, "1", 200, 0)
	batch, _ := Tick(w.now(), w.snap(), everything(w.snap()), w.newUID)
	w.change(func(b *state.Batch) {
		reported := proto.CloneOf(w.of("batch")[0])
		reported.Status.Restarts++
		b.Update(reported, reported.GetMetadata().GetVersion())
	})
	w.apply(batch)
	if all := w.of("batch"); len(all) != 1 || all[0].GetSpec().GetDesired() != spec.DesiredRunning {
		t.Errorf("the replica that was not stopped and its successors are %v", all)
	}
}
