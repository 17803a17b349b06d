package objects_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cloudless/cloudless/internal/control/objects"
	"github.com/cloudless/cloudless/internal/object"
	"github.com/cloudless/cloudless/internal/object/names"
	"github.com/cloudless/cloudless/internal/object/objecttest"
	"github.com/cloudless/cloudless/internal/spec"
)

const many = 40

// fill puts objects of one chunk each.
func (w *world) fill(count int) {
	w.t.Helper()
	for i := range count {
		w.put(fmt.Sprint("object-", i), 1000, uint64(i))
	}
}

func TestLostNodeIsReplacedAfterTheDelay(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		lost := w.on("b")
		w.cut("b")
		w.pass(settings().RepairDelay - time.Minute)
		if on := w.on("a") + w.on("c"); on != 2*many-lost {
			t.Errorf("%d copies are on the other nodes before the delay has passed", on)
		}
		w.pass(2 * time.Minute)
		w.view(func(v *names.View) error { return nil })
		if a, c := w.on("a"), w.on("c"); a != many || c != many {
			t.Errorf("nodes have %d and %d of %d chunks after the delay", a, c, many)
		}
		if !w.told(objects.RepairStarted) || !w.told(objects.RepairFinished) {
			t.Error("nobody was told of the repair")
		}
	})
}

func TestReturningNodeBringsItsChunksBack(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.cut("b")
		had := w.on("b")
		w.pass(time.Hour)
		w.join("b")
		w.pass(30 * time.Minute)
		if on := w.on("b"); on != had {
			t.Errorf("the node has %d chunks soon after its return, and had %d", on, had)
		}
		w.pass(48 * time.Hour)
		w.all(many, 2) // what is too much goes at last
		w.agrees("a", "b", "c")
	})
}

func TestRemovedNodeIsReplacedAtOnce(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		w.remove("b")
		w.pass(time.Minute)
		w.all(many, 2)
		w.view(func(v *names.View) error {
			nodes, err := v.Nodes()
			if nodes["uid-b"] != 0 {
				t.Error("the node still has a number")
			}
			return err
		})
	})
}

func TestDrainingNodeIsEmptied(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		if left, err := w.loops.Left(context.Background(), "uid-b"); err != nil || left == 0 || int(left) != w.on("b") {
			t.Fatalf("%d chunks are left on the node: %v", left, err)
		}
		w.disks.Change("uid-b", func(n *object.Node) { n.Draining = true })
		w.pass(time.Minute)
		if left, err := w.loops.Left(context.Background(), "uid-b"); err != nil || left != 0 {
			t.Errorf("%d chunks are left on the drained node: %v", left, err)
		}
		w.all(many, 2)
		if !w.told(objects.Drained) {
			t.Error("nobody was told that the node is drained")
		}
		w.pass(48 * time.Hour)
		w.agrees("a", "b", "c")
	})
}

// The only node that can have copies keeps them, draining or not.
func TestLastNodeKeepsItsChunksWhileDraining(t *testing.T) {
	inWorld(t, []string{"a"}, func(w *world) {
		w.fill(many)
		w.disks.Change("uid-a", func(n *object.Node) { n.Draining = true })
		w.pass(48 * time.Hour)
		w.all(many, 1)
	})
}

func TestRepairKeepsItsRateUnlessTheNodeIsIdle(t *testing.T) {
	for _, idle := range []bool{false, true} {
		t.Run(fmt.Sprint("idle ", idle), func(t *testing.T) {
			inWorld(t, []string{"a", "b"}, func(w *world) {
				w.cut("b")
				w.pass(time.Hour)
				for i := range 24 {
					w.put(fmt.Sprint(i), 4<<20, uint64(i))
				}
				w.resign()
				w.join("b")
				w.disks.Change("uid-b", func(n *object.Node) { n.Idle = idle })
				slow := settings()
				slow.RepairRate = 1 << 20
				w.loops = w.loopsWith(func(o *objects.Options) { o.Settings = func() spec.Storage { return slow } })
				w.lead()
				w.pass(20 * time.Second)
				copied := w.on("b")
				if idle && copied != 24 || !idle && copied > 16 {
					t.Errorf("%d of 24 chunks were copied in 20 s", copied)
				}
				w.pass(2 * time.Minute)
				w.all(24, 2)
			})
		})
	}
}

// loopsWith returns other loops over the same store.
func (w *world) loopsWith(change func(*objects.Options)) *objects.Loops {
	w.t.Helper()
	o := objects.Options{
		Names: w.names, Disks: w.disks, Logger: discard, Settings: settings, Removed: w.isRemoved, Tell: w.tell,
	}
	change(&o)
	loops, err := objects.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return loops
}

func TestFullNodeGetsNothingMore(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		w.disks.Break("uid-c", objecttest.Faults{Full: true})
		had := w.on("c")
		w.remove("b")
		w.pass(10 * time.Minute)
		if on := w.on("c"); on > had {
			t.Errorf("the full node has %d chunks, and had %d", on, had)
		}
		if w.on("a") != many {
			t.Error("the node with room does not have all chunks")
		}
		w.disks.Break("uid-c", objecttest.Faults{})
		w.pass(10 * time.Minute)
		w.all(many, 2)
	})
}

func TestRepairNowDoesNotWait(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		w.cut("b")
		var last objects.Progress
		if err := w.loops.RepairNow(context.Background(), func(p objects.Progress) { last = p }); err != nil {
			t.Fatal(err)
		}
		if a, c := w.on("a"), w.on("c"); a != many || c != many {
			t.Errorf("nodes have %d and %d of %d chunks", a, c, many)
		}
		if !last.Finished || last.Done != last.Total || last.Done == 0 {
			t.Errorf("the last progress was %+v", last)
		}
	})
}

func TestRepairNowIsForTheLeader(t *testing.T) {
	inWorld(t, []string{"a", "b"}, func(w *world) {
		w.resign()
		if err := w.loops.RepairNow(context.Background(), nil); !errors.Is(err, objects.ErrNotLeading) {
			t.Errorf("a server that does not lead answered %v", err)
		}
		status, err := w.loops.Status(context.Background())
		if err != nil || status.Leading || len(status.Nodes) != 2 {
			t.Errorf("it says %+v, %v", status, err)
		}
	})
}

func TestRepairNowEndsWithTheTerm(t *testing.T) {
	inWorld(t, []string{"a", "b"}, func(w *world) {
		w.disks.Break("uid-b", objecttest.Faults{Stalled: true})
		w.disks.Change("uid-a", func(n *object.Node) { n.Draining = true })
		answer := make(chan error, 1)
		go func() { answer <- w.loops.RepairNow(context.Background(), nil) }()
		synctest.Wait()
		w.resign()
		if err := <-answer; err != nil && !errors.Is(err, objects.ErrNotLeading) && !errors.Is(err, context.Canceled) {
			t.Errorf("the caller was told %v", err)
		}
	})
}

func TestStatusSaysWhy(t *testing.T) {
	inWorld(t, []string{"a", "b", "c"}, func(w *world) {
		w.fill(many)
		w.pass(time.Minute)
		w.cut("b")
		w.pass(time.Minute)
		status := w.status()
		if status.UnderReplicated != int64(w.on("b")) || status.Unreachable != 0 || !strings.Contains(strings.Join(status.Reasons, "\n"), "node b has not answered for") {
			t.Errorf("with a node away: %+v", status)
		}
		w.cut("c")
		w.cut("a")
		w.pass(10 * time.Minute)
		status = w.status()
		if status.Unreachable != many || !strings.Contains(strings.Join(status.Reasons, "\n"), "are only on nodes that do not answer (a, b, c)") {
			t.Errorf("with all nodes away: %+v", status)
		}
		for _, node := range []string{"a", "b", "c"} {
			w.join(node)
		}
		w.pass(10 * time.Minute)
		if status = w.status(); status.UnderReplicated != 0 || len(status.Reasons) != 0 {
			t.Errorf("with all nodes back: %+v", status)
		}
	})
}

func (w *world) status() objects.Status {
	w.t.Helper()
	status, err := w.loops.Status(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return status
}

func TestSmallClusterIsNotUnderReplicated(t *testing.T) {
	inWorld(t, []string{"a"}, func(w *world) {
		w.fill(many)
		w.pass(2 * time.Hour)
		status := w.status()
		if status.UnderReplicated != 0 || len(status.Reasons) != 1 || !strings.Contains(status.Reasons[0], "more copies than the cluster has nodes (1)") {
			t.Errorf("one node: %+v", status)
		}
	})
}
