package replicas

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A cluster that follows the changes answers like one that is read afresh.
func TestFollowedClusterEqualsFreshOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		followSteps(t, func(_ *world, _ step, now *state.Snapshot, kept *cluster) {
			fresh := newCluster(now)
			for workload := range now.Workloads("", "") {
				a, errA := kept.Revision(now, workload.GetStatus().GetRevisionUid())
				b, errB := fresh.Revision(now, workload.GetStatus().GetRevisionUid())
				if (errA == nil) != (errB == nil) || !reflect.DeepEqual(a, b) {
					t.Fatalf("%v (%v) is kept of %v (%v)", a, errA, b, errB)
				}
				if errA != nil {
					continue
				}
				request := func(r *scheduler.Revision) scheduler.Request {
					return scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: 30}}, Reasons: true}
				}
				if x, y := kept.View.Plan(request(a)), fresh.View.Plan(request(b)); !reflect.DeepEqual(x, y) {
					t.Fatalf("the plan of the kept one is\n%+v\nnot\n%+v", x, y)
				}
			}
		})
	})
}

// followSteps lets a cluster follow random changes of a world and calls look after each
// step.
func followSteps(t *rapid.T, look func(w *world, after step, now *state.Snapshot, kept *cluster)) {
	w := newWorld(t)
	for _, name := range nodeNames {
		w.addNode(name, "4")
	}
	snap, feed := w.store.Subscribe()
	kept := newCluster(snap)
	for _, s := range drawSteps(t) {
		w.take(s)
		now, changes, err := feed.Newest()
		if err != nil {
			t.Fatalf("%v", err)
		}
		kept.follow(now, changes)
		look(w, s, now, kept)
	}
}

// A pending workload is retried when it would fit, and not when something else changes.
func TestPendingWakesWhenItFits(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "2")
	w.addWorkload("web", 1, "1")
	w.addWorkload("big", 1, "4")
	d := drive(w)
	d.rest()
	if got := w.phases("big"); got[spec.PhasePending] != 1 {
		t.Fatalf("big is %v", got)
	}
	uid := w.snap().WorkloadByName("default", "big").GetMetadata().GetUid()
	w.addNode("small", "3")
	if got := d.follow(); got.Workloads[uid] || got.Placement {
		t.Errorf("a node that is too small makes due %v", got)
	}
	w.setNode("small", "offline")
	grown := proto.CloneOf(w.snap().NodeByName("a"))
	grown.Status.Capacity.Cpu = "8"
	w.change(func(b *state.Batch) { b.Update(grown, grown.GetMetadata().GetVersion()) })
	got := d.follow()
	if !got.Workloads[uid] {
		t.Fatalf("room makes due %v", got)
	}
	d.settleLoop()
	d.rest()
	if got := w.phases("big"); got[spec.PhaseRunning] != 1 {
		t.Errorf("big is %v", got)
	}
}

// The cluster configuration sets the overcommit.
func TestConfigurationSetsOvercommit(t *testing.T) {
	w := newWorld(t)
	w.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{
			Metadata: &v1.Metadata{Uid: w.newUID(), Name: "cluster"},
			Spec:     &v1.ClusterSpec{Overcommit: &v1.Overcommit{Cpu: new(int32(200))}, Reserved: &v1.ResourceAmounts{Cpu: "1"}},
		})
	})
	w.addNode("a", "2")
	w.addWorkload("web", 5, "1")
	w.settle()
	if got := w.phases("web"); got[spec.PhaseRunning] != 3 || got[spec.PhasePending] != 2 {
		t.Errorf("with 2 CPU, twice promised, less one, web is %v", got)
	}
}
