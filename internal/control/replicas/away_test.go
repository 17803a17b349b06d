package replicas

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// where lists the live replicas of a workload as "node phase", in order.
func (w *world) where(name string) []string {
	var list []string
	for r := range w.snap().ReplicasOf(w.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
		if spec.Live(r.GetStatus().GetPhase()) {
			list = append(list, r.GetSpec().GetNode()+" "+r.GetStatus().GetPhase())
		}
	}
	slices.Sort(list)
	return list
}

func (w *world) wantWhere(name string, want ...string) {
	w.t.Helper()
	if got := w.where(name); !slices.Equal(got, want) {
		w.t.Fatalf("%s is on %q, want %q", name, got, want)
	}
}

func twoNodes(t *testing.T) *world {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 1, "1")
	w.settle()
	w.addNode("b", "4")
	w.wantWhere("web", "a running")
	return w
}

func TestReplicaOfAnOfflineNodeIsReplacedElsewhere(t *testing.T) {
	w := twoNodes(t)
	w.setNode("a", "offline")
	w.tick()
	w.wantWhere("web", "a running", "b placed")
	if !slices.ContainsFunc(slices.Collect(w.snap().Events("")), func(e *v1.Event) bool {
		return e.GetSpec().GetReason() == "Placed" && e.GetSpec().GetMessage() == "on node b, because a is offline"
	}) {
		t.Error("no event says why")
	}
	// The first replica may still run, so it is lost only once the second one runs.
	w.settle()
	w.wantWhere("web", "b running")
	if got := w.phases("web"); !maps.Equal(got, map[string]int{"lost": 1, "running": 1}) {
		t.Errorf("the replicas are %v", got)
	}
	for r := range w.snap().ReplicasOn(w.snap().NodeByName("a").GetMetadata().GetUid()) {
		if !strings.Contains(r.GetStatus().GetReason(), "node a is offline") || r.GetStatus().GetEndTime() == nil {
			t.Errorf("the lost one says %v", r.GetStatus())
		}
	}
	// The node is back. Nothing is left to do: the lost replica is no longer assigned to
	// it.
	w.setNode("a", "ready")
	w.settle()
	w.wantWhere("web", "b running")
}

func TestNodeBackBeforeTheCoverRunsKeepsItsReplica(t *testing.T) {
	w := twoNodes(t)
	w.setNode("a", "offline")
	w.tick()
	w.setNode("a", "ready")
	w.settle()
	w.wantWhere("web", "a running")
	if got := w.phases("web"); got["lost"] != 0 {
		t.Errorf("the replicas are %v", got)
	}
}

func TestReplicaOfAnOfflineNodeStaysIfNothingFits(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 2, "1")
	w.settle()
	w.setNode("a", "offline")
	if w.tick() {
		t.Error("a tick changes something although there is no other node")
	}
	if why := (Placement{}).Explain(w.snap(), w.snap().WorkloadByName("default", "web").GetMetadata().GetUid()); len(why) != 1 || !strings.HasPrefix(why[0].GetReason(), "is offline") {
		t.Errorf("explained by %v", why)
	}
	w.setNode("a", "ready")
	w.settle()
	w.wantWhere("web", "a running", "a running")
	if got := w.phases("web"); got["running"] != 2 || len(got) != 1 {
		t.Errorf("the replicas are %v", got)
	}
	// Capacity that appears later is used.
	w.setNode("a", "offline")
	_, feed := w.store.Subscribe()
	w.addNode("b", "1")
	changes, err := feed.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if due := dueAfter(changes); !due.Placement {
		t.Error("a new node is no reason to look again")
	}
	w.settle()
	w.wantWhere("web", "a running", "b running")
}

func TestReplicasOfACordonedNodeStay(t *testing.T) {
	for _, nodeState := range []string{"cordoned", "failed"} {
		w := twoNodes(t)
		w.setNode("a", nodeState)
		if w.tick() {
			t.Errorf("a tick moves replicas of a node that is %s", nodeState)
		}
	}
}

func TestDeletionDoesNotWaitForAnOfflineNode(t *testing.T) {
	w := twoNodes(t)
	w.setNode("a", "offline")
	w.delete("web")
	w.settle()
	if w.snap().WorkloadByName("default", "web") != nil {
		t.Error("the workload is still there")
	}
}

func TestOnlyRelevantChangesTriggerPlacement(t *testing.T) {
	n := &v1.Node{Metadata: &v1.Metadata{Uid: "n"}, Status: &v1.NodeStatus{State: "ready"}}
	measured := &v1.Node{Metadata: &v1.Metadata{Uid: "n"}, Status: &v1.NodeStatus{
		State: "ready", Reliability: &v1.Reliability{Score: 7}, Conditions: []*v1.Condition{{Type: "DiskPressure"}},
	}}
	offline := &v1.Node{Metadata: &v1.Metadata{Uid: "n"}, Status: &v1.NodeStatus{State: "offline"}}
	due := func(before, after *v1.Node) Due {
		return dueAfter([]state.Change{{Kind: state.KindNode, Old: before, New: after}})
	}
	if got := due(n, measured); !got.Empty() {
		t.Errorf("a score makes %v due", got)
	}
	if got := due(n, offline); !got.Nodes["n"] {
		t.Errorf("a loss makes %v due", got)
	}
	if got := due(offline, n); !got.Nodes["n"] || !got.Placement {
		t.Errorf("a return makes %v due", got)
	}
}

// With some nodes offline for good, each workload has as many replicas on the other nodes
// as it should or as fit. It keeps only as many replicas on offline nodes as are missing
// elsewhere.
func TestOfflineNodesAreCoveredExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for _, name := range nodeNames {
			w.addNode(name, "4")
		}
		for _, s := range drawSteps(t) {
			w.take(s)
		}
		for _, name := range nodeNames {
			w.setNode(name, rapid.SampledFrom([]string{"ready", "offline"}).Draw(t, name))
		}
		w.settle()
		for of := range w.snap().Workloads("", "") {
			here, away := 0, 0
			for r := range w.snap().ReplicasOf(of.GetMetadata().GetUid()) {
				switch {
				case spec.Ended(r.GetStatus().GetPhase()):
				case placement.Away(w.snap(), r):
					away++
				case r.GetStatus().GetPhase() == spec.PhaseRunning:
					here++
				}
			}
			want := int(of.GetSpec().GetReplicas())
			if here > want || away > 0 && here+away > want {
				t.Fatalf("%s has %d running and %d away, want %d", of.GetMetadata().GetName(), here, away, want)
			}
			uid := of.GetMetadata().GetUid()
			if here < want && len((Placement{}).Explain(w.snap(), uid)) == 0 && (Placement{}).ShortOfQuota(w.snap(), uid) == "" {
				t.Fatalf("%s has %d of %d although nothing speaks against any node", of.GetMetadata().GetName(), here, want)
			}
		}
	})
}
