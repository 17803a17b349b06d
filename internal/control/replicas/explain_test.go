package replicas

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

func (w *world) explained(name, node string, all bool) *v1.Explanation {
	w.t.Helper()
	uid := ""
	if node != "" {
		uid = w.snap().NodeByName(node).GetMetadata().GetUid()
	}
	e, err := Placement{}.Explanation(w.snap(), w.snap().WorkloadByName("default", name).GetMetadata().GetUid(), uid, all)
	if err != nil {
		w.t.Fatalf("explain %s: %v", name, err)
	}
	return e
}

// nameOf is the name of a workload's only replica.
func (w *world) nameOf(workload string) (name string) {
	for r := range w.snap().ReplicasOf(w.snap().WorkloadByName("default", workload).GetMetadata().GetUid()) {
		name = r.GetMetadata().GetName()
	}
	return name
}

// described renders an explanation as lines: the summary, the requirements, the nodes, the
// replicas and what would help.
func described(e *v1.Explanation) []string {
	lines := []string{e.GetSummary(), fmt.Sprintf("%d of %d nodes would take %s", e.GetTakingCount(), e.GetNodeCount(), e.GetAbout())}
	for _, n := range e.GetNodes() {
		line := fmt.Sprintf("%d %s", n.GetRank(), n.GetNode())
		for _, r := range n.GetRefusals() {
			line += fmt.Sprintf(" [%s] %s", r.GetFilter(), r.GetReason())
		}
		lines = append(lines, line)
	}
	for _, r := range e.GetReplicas() {
		lines = append(lines, fmt.Sprintf("%d on %q: %s", r.GetCount(), r.GetNode(), r.GetReason()))
	}
	for _, h := range e.GetHelp() {
		lines = append(lines, "help: "+h)
	}
	return lines
}

func wantTold(t *testing.T, e *v1.Explanation, want ...string) {
	t.Helper()
	if got := strings.Join(described(e), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// The explanation of running replicas says why they are there, and what would be chosen
// today.
func TestRunningReplicasAreExplained(t *testing.T) {
	w := twoNodes(t)
	wantTold(t, w.explained("web", "", false),
		"1 of 1 replica has a node",
		"2 of 2 nodes would take one more replica",
		"1 b", "2 a",
		`1 on "a": a is the best of 2 nodes that would take it: it is equal to b in all and comes first by name`,
	)
	e := w.explained("web", "", false)
	if s := e.GetNodes()[0].GetScore(); s.GetTotal() != 0.9 || s.GetUtilization() != 0.5 || s.GetSameNode() != 0 || e.GetWeights().GetReliability() != 0.3 {
		t.Errorf("the score is %v with weights %v", s, e.GetWeights())
	}
	if got, want := e.GetNodes()[0].GetBeforeNext(), "it has 0 replicas of the workload, a 1"; got != want {
		t.Errorf("b is first because %s", got)
	}
	if got := strings.Join(e.GetLevels(), " "); got != "zone node" || e.GetStrategy() != "pack" {
		t.Errorf("it is levelled over %s by %s", got, e.GetStrategy())
	}

	w.addNode("c", "64") // larger, so that the plan would begin with it
	w.setNode("b", "cordoned")
	wantTold(t, w.explained("web", "", false),
		"1 of 1 replica has a node",
		"2 of 3 nodes would take one more replica",
		"1 c", "2 a", "0 b [ready] is cordoned",
		`1 on "a": c would be chosen today, of 2 nodes that would take it: its score is 0.9, that of a 0.853, most of all by utilization, 0.5 to 0.265`+
			"; what runs is not moved for that",
	)
	w.setNode("a", "cordoned")
	wantTold(t, w.explained("web", "a", false),
		"1 of 1 replica has a node",
		"1 of 3 nodes would take one more replica",
		"0 a [ready] is cordoned",
		`1 on "a": a would refuse it today: is cordoned; c would be chosen; what runs is not moved for that`,
	)
}

// The explanation of pending replicas says why they wait and what would help, even if some
// fit.
func TestWaitingReplicasAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addWorkload("web", 1, "1")
	w.settle()
	wantTold(t, w.explained("web", "", false),
		"0 of 1 replica has a node; 1 has no place",
		"0 of 0 nodes would take a replica that has no node",
		`1 on "": 1 replica of web cannot be placed: the cluster has no nodes yet`,
		"help: a first node: the cluster has none yet",
	)
	w.addNode("a", "4")
	w.addNode("b", "4")
	w.settle()
	w.scale("web", 9)
	// The loop has not run yet.
	wantTold(t, w.explained("web", "", false),
		"1 of 9 replicas has a node; 1 has no place",
		"2 of 2 nodes would take a replica that has no node",
		"1 b", "2 a",
		`1 on "a": a is the best of 2 nodes that would take it: it is equal to b in all and comes first by name`,
		`8 on "": 7 have a place: b (4), a (3); 1 replica of web cannot be placed: a: needs 1 CPU, 0 of 4 free (and 1 more node refused for the like)`,
		"help: 2 nodes would fit after 1 CPU is freed; the largest free is 0 on a",
	)
	w.settle()
	wantTold(t, w.explained("web", "", true),
		"8 of 9 replicas have a node; 1 has no place",
		"0 of 2 nodes would take a replica that has no node",
		"0 a [fit] needs 1 CPU, 0 of 4 free", "0 b [fit] needs 1 CPU, 0 of 4 free",
		`4 on "a": a is the only node that would take it`,
		`4 on "b": b is the only node that would take it`,
		`1 on "": 1 replica of web cannot be placed: a: needs 1 CPU, 0 of 4 free (and 1 more node refused for the like)`,
		"help: 2 nodes would fit after 1 CPU is freed; the largest free is 0 on a",
	)
	w.scale("web", 0)
	w.settle()
	wantTold(t, w.explained("web", "", false),
		"no replica runs or waits", "2 of 2 nodes would take one more replica", "1 a", "2 b")
}

// A replica on an offline node waits for its replacement.
func TestReplicasOfOfflineNodesAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 1, "3")
	w.settle()
	w.addNode("b", "2")
	w.setNode("a", "offline")
	w.settle()
	wantTold(t, w.explained("web", "", false),
		"1 of 1 replica has a node; 1 on a node that is offline, and no node can take a replacement",
		"0 of 2 nodes would take a replacement for "+w.nameOf("web")+", whose node is offline",
		"0 a [ready] is offline [fit] needs 3 CPU, 1 of 4 free", "0 b [fit] needs 3 CPU, 2 of 2 free",
		`1 on "a": a is offline; it is replaced as soon as another node can take it`,
		`1 on "": 1 replica of web cannot be placed: a: is offline; b: needs 3 CPU, 2 of 2 free`,
		"help: a larger node, or a smaller request: it needs 3 CPU, and b, the largest that would do otherwise, has 2",
	)
}

// The replicas of the new revision fit nowhere, not even in place of the old ones.
func TestOutdatedReplicasAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("web", 1, "1")
	w.settle()
	w.edit("web", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Cpu = "5"
		w.revise(b, of)
	})
	w.settle()
	wantTold(t, w.explained("web", "", false),
		"1 of 1 replica has a node; 1 outdated, and no node can take a successor",
		"0 of 1 nodes would take the successor of "+w.nameOf("web")+", in its place",
		"0 a [fit] needs 5 CPU, 4 of 4 free",
		`1 on "a": a is the only node that would take it; it is outdated and will be replaced`,
		"help: a larger node, or a smaller request: it needs 5 CPU, and a, the largest that would do otherwise, has 4",
	)
}

// A completed replica waits for nothing.
func TestCompletedReplicasAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addWorkload("once", 1, "1")
	w.edit("once", func(_ *state.Batch, of *v1.Workload) { of.Spec.Restart = &v1.Restart{Policy: "never"} })
	w.settle()
	w.change(func(b *state.Batch) {
		for old := range w.snap().Replicas("", "") {
			r := proto.CloneOf(old)
			r.Status.Phase = spec.PhaseCompleted
			b.Update(r, old.GetMetadata().GetVersion())
		}
	})
	wantTold(t, w.explained("once", "", false), "no replica runs or waits", "1 of 1 nodes would take one more replica", "1 a")
}

// The answer is bounded, however many nodes there are, and says what it leaves out.
func TestExplanationsAreBounded(t *testing.T) {
	w := newWorld(t)
	for i := range 100 {
		w.addNode(fmt.Sprintf("big%03d", i), "4")
		w.addNode(fmt.Sprintf("small%03d", i), "1")
	}
	w.addWorkload("web", 60, "2")
	w.settle()
	e := w.explained("web", "", false)
	if len(e.GetNodes()) != 2*20 || len(e.GetReplicas()) != 20 || e.GetReplicasLeftOut() != 40 {
		t.Errorf("%d nodes and %d replicas are listed, %d left out", len(e.GetNodes()), len(e.GetReplicas()), e.GetReplicasLeftOut())
	}
	if e.GetTakingCount() != 100 || len(e.GetRefused()) != 1 || e.GetRefused()[0].GetCount() != 100 {
		t.Errorf("%d would take it, and %v refuse", e.GetTakingCount(), e.GetRefused())
	}
	if e = w.explained("web", "", true); len(e.GetNodes()) != 200 || len(e.GetReplicas()) != 60 || e.GetReplicasLeftOut() != 0 {
		t.Errorf("of all, %d nodes and %d replicas are listed, %d left out", len(e.GetNodes()), len(e.GetReplicas()), e.GetReplicasLeftOut())
	}
	if e = w.explained("web", "small007", true); len(e.GetNodes()) != 1 || e.GetNodes()[0].GetRefusals()[0].GetFilter() != "fit" || len(e.GetReplicas()) != 0 {
		t.Errorf("of one node it is %v", e)
	}
}

// Each weight is the workload's, else the cluster's, else the default. Their sum is 1.
func TestWeightsOfClusterAndWorkloadCount(t *testing.T) {
	w := newWorld(t)
	w.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{
			Metadata: &v1.Metadata{Uid: w.newUID(), Name: "cluster"}, Spec: &v1.ClusterSpec{Weights: &v1.ScoreWeights{Cost: new(2.55)}},
		})
	})
	w.addNode("dear", "4")
	w.addNode("shaky", "4")
	for name, change := range map[string]func(*v1.Node){
		"dear":  func(n *v1.Node) { n.Spec = &v1.NodeSpec{Price: 10} },
		"shaky": func(n *v1.Node) { n.Status.Reliability = &v1.Reliability{Score: 20} },
	} {
		n := proto.CloneOf(w.snap().NodeByName(name))
		change(n)
		w.change(func(b *state.Batch) { b.Update(n, n.GetMetadata().GetVersion()) })
	}
	w.addWorkload("web", 1, "1")
	w.addWorkload("safe", 1, "1")
	w.edit("safe", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Placement = &v1.Placement{Weights: &v1.ScoreWeights{Reliability: new(9.3)}}
		w.revise(b, of)
	})
	web, safe := w.explained("web", "", false), w.explained("safe", "", false)
	if web.GetWeights().GetCost() != 0.75 || web.GetWeights().GetReliability() != 0.089 || web.GetNodes()[0].GetNode() != "shaky" {
		t.Errorf("web is weighed by %v and goes to %s", web.GetWeights(), web.GetNodes()[0].GetNode())
	}
	if safe.GetWeights().GetReliability() != 0.75 || safe.GetWeights().GetCost() != 0.205 || safe.GetNodes()[0].GetNode() != "dear" {
		t.Errorf("safe is weighed by %v and goes to %s", safe.GetWeights(), safe.GetNodes()[0].GetNode())
	}
	w.settle()
	w.wantWhere("web", "shaky running")
	w.wantWhere("safe", "dear running")
}

// The loop remembers the score of a placement as long as the replica stays there. It keeps
// only the newest ones.
func TestDecisionsAreRemembered(t *testing.T) {
	w := twoNodes(t)
	d := drive(w)
	d.loop.Decisions = &placement.Decisions{}
	w.scale("web", 2)
	d.rest()
	e, err := Placement{placement.Queries{Decisions: d.loop.Decisions}}.Explanation(w.snap(), w.snap().WorkloadByName("default", "web").GetMetadata().GetUid(), "", false)
	if err != nil {
		t.Fatal(err)
	}
	first, second := e.GetReplicas()[0], e.GetReplicas()[1]
	if first.GetPlacedScore() != nil || second.GetNode() != "b" || second.GetPlacedScore().GetTotal() != 0.9 || second.GetPlacedScore().GetReliability() != 1 {
		t.Errorf("the replicas were placed with %v and %v", first.GetPlacedScore(), second.GetPlacedScore())
	}
}

// Each replica of a daemon is bound to one node. A job has as many replicas as run in
// parallel.
func TestKindsAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addNode("b", "4")
	w.addWorkload("web", 1, "3")
	w.settle()
	w.addKind("logs", spec.KindDaemon, "2", nil)
	e := w.explained("logs", "", false)
	if got, want := e.GetSummary(), "1 of 2 replicas would have a node; 1 has no place"; got != want {
		t.Errorf("before the loop has seen it: %s", got)
	}
	w.settle()
	e = w.explained("logs", "", false)
	if got, want := e.GetSummary(), "1 of 2 replicas has a node; 1 has no place"; got != want {
		t.Errorf("then: %s", got)
	}
	w.addKind("work", spec.KindJob, "1", func(s *v1.WorkloadSpec) { s.Job = &v1.Job{Completions: proto.Int32(5), Parallelism: proto.Int32(2)} })
	if got, want := w.explained("work", "", false).GetSummary(), "2 of 2 replicas would have a node"; got != want {
		t.Errorf("of a job: %s", got)
	}
}

// Each node has its own verdict about a daemon: it has a replica, it should have one and
// cannot, or it does not suit. Help is suggested for the second group.
func TestDaemonsAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addNode("b", "4")
	w.addWorkload("web", 1, "3")
	w.settle()
	w.addNode("c", "8")
	w.addNode("d", "1")
	w.taint("c", &v1.Taint{Key: "gpu", Effect: "NoSchedule"})
	w.setNode("d", "cordoned")
	w.addKind("logs", spec.KindDaemon, "2", nil)
	w.settle()
	full := "a: needs 2 CPU, 1 of 4 free"
	wantTold(t, w.explained("logs", "", false),
		"1 of 2 replicas has a node; 1 has no place",
		"1 of 4 nodes would take one of its own",
		"1 b", "0 a [fit] needs 2 CPU, 1 of 4 free",
		"0 c [taints] has the taint gpu:NoSchedule, which is not tolerated",
		"0 d [ready] is cordoned [fit] needs 2 CPU, 1 of 1 free",
		`1 on "b": it is a daemon, and b suits it`,
		`1 on "": 1 replica of logs cannot be placed: `+full,
		"help: 1 node would fit after 1 CPU is freed; the largest free is 1 on a",
	)
	e := w.explained("logs", "", false)
	if !e.GetEveryNode() || e.GetSuitingCount() != 2 || !e.GetNodes()[1].GetSuits() || e.GetNodes()[2].GetSuits() || len(e.GetRefused()) != 3 {
		t.Errorf("of the nodes it says %v", e)
	}
	// The explanation for one node also lists what is pending there.
	wantTold(t, w.explained("logs", "a", false),
		"1 of 2 replicas has a node; 1 has no place",
		"1 of 4 nodes would take one of its own",
		"0 a [fit] needs 2 CPU, 1 of 4 free",
		`1 on "": 1 replica of logs cannot be placed: `+full,
		"help: 1 node would fit after 1 CPU is freed; the largest free is 1 on a",
	)
	wantTold(t, w.explained("logs", "b", false),
		"1 of 2 replicas has a node; 1 has no place",
		"1 of 4 nodes would take one of its own",
		"1 b", `1 on "b": it is a daemon, and b suits it`,
	)
	// The workload's reasons say the same.
	reasons := Placement{}.Explain(w.snap(), w.snap().WorkloadByName("default", "logs").GetMetadata().GetUid())
	if len(reasons) != 1 || reasons[0].GetNode()+": "+reasons[0].GetReason() != full {
		t.Errorf("the workload says %v", reasons)
	}
}

// A cordoned node keeps its daemon replica, and an offline node remains the place of its
// replica: no other node is chosen. A successor is explained at its predecessor's place.
func TestDaemonsOnNodesThatChangeAreExplained(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.addNode(name, "4")
	}
	w.addKind("logs", spec.KindDaemon, "3", nil)
	w.settle()
	w.setNode("a", "cordoned")
	w.setNode("b", "offline")
	w.settle()
	wantTold(t, w.explained("logs", "", false),
		"3 of 3 replicas have a node; 1 on a node that is offline",
		"3 of 3 nodes would take one of its own",
		"1 a", "1 b", "1 c",
		`1 on "a": it is a daemon, and a keeps it, but would take no new one today: is cordoned`,
		`1 on "b": it is a daemon, and its place is on b, which is offline`,
		`1 on "c": it is a daemon, and c suits it`,
	)
	w.setNode("a", "ready")
	w.setNode("b", "ready")
	w.edit("logs", func(b *state.Batch, of *v1.Workload) {
		of.Spec.Resources.Requests.Cpu = "5"
		w.revise(b, of)
	})
	w.settle()
	wantTold(t, w.explained("logs", "c", false),
		"3 of 3 replicas have a node; 3 outdated, and on 3 of the nodes a successor cannot be placed",
		"0 of 3 nodes would take one of its own",
		"0 c [fit] needs 5 CPU, 4 of 4 free",
		`1 on "c": it is a daemon, and c suits it; it is outdated and will be replaced`,
		"help: a larger node, or a smaller request: it needs 5 CPU, and c, the largest that would do otherwise, has 4",
	)
}

// An explanation for one node still counts all replicas without a place.
func TestExplanationForOneNodeCountsAllPendingReplicas(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addNode("b", "4")
	w.addWorkload("web", 3, "900")
	want := []string{
		"0 of 2 nodes would take a replica that has no node", "0 a [fit] needs 900 CPU, 4 of 4 free",
		"help: a larger node, or a smaller request: it needs 900 CPU, and a, the largest that would do otherwise, has 4",
	}
	wantTold(t, w.explained("web", "a", false), append([]string{"0 of 3 replicas would have a node; 3 have no place"}, want...)...)
	w.settle()
	wantTold(t, w.explained("web", "a", false), append([]string{"0 of 3 replicas have a node; 3 have no place"}, want...)...)
}

// A used-up quota comes first, with the command that would raise it far enough.
func TestQuotasAreExplained(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "16")
	w.quota(&v1.Quota{Cpu: "3", Replicas: new(int64(10))})
	w.addWorkload("web", 5, "1")
	// The quota has room for some replicas. The loop has not run yet.
	wantTold(t, w.explained("web", "", false),
		"3 of 5 replicas would have a node; 2 have no place; the quota of namespace default is used up: needs 1 CPU, 0 of 3 left",
		"1 of 1 nodes would take a replica that has no node", "1 a",
		`5 on "": 3 have a place: a (3); 2 replicas of web cannot be placed: the quota of namespace default is used up: needs 1 CPU, 0 of 3 left`,
		"help: a higher quota of namespace default: cloudless namespace set default --cpu 5",
	)
	w.settle()
	e := w.explained("web", "", false)
	if got, want := e.GetSummary(), "3 of 5 replicas have a node; 2 have no place; the quota of namespace default is used up: needs 1 CPU, 0 of 3 left"; got != want {
		t.Errorf("the summary is %s", got)
	}
	if got, want := strings.Join(e.GetHelp(), "; "), "a higher quota of namespace default: cloudless namespace set default --cpu 5"; got != want {
		t.Errorf("what would help is %s", got)
	}
	// The suggested command helps.
	w.quota(&v1.Quota{Cpu: "5", Replicas: new(int64(5))})
	w.settle()
	wantTold(t, w.explained("web", "a", false),
		"5 of 5 replicas have a node; for one more, the quota of namespace default is used up: needs 1 CPU, 0 of 5 left, has 5 of at most 5 replicas",
		"1 of 1 nodes would take one more replica", "1 a",
		`5 on "a": a is the only node that would take it`,
		"help: a higher quota of namespace default: cloudless namespace set default --cpu 6 --replicas 6",
	)
	// A daemon has the same reason on each of its nodes.
	w.addKind("logs", spec.KindDaemon, "2", nil)
	w.settle()
	e = w.explained("logs", "", false)
	if got, want := strings.Join(e.GetHelp(), "; "), "a higher quota of namespace default: cloudless namespace set default --cpu 7 --replicas 6"; got != want {
		t.Errorf("what would help the daemon is %s", got)
	}
	if got := e.GetNodes()[0].GetRefusals(); len(got) != 1 || got[0].GetFilter() != "quota" {
		t.Errorf("what keeps the daemon from its node is %v", got)
	}
}

// A replica that may preempt others could be on other nodes, too.
func TestPreemptorHasOtherNodes(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addNode("b", "1")
	w.addRanked("web", 2, "1", 100, 0)
	w.settle()
	w.addRanked("boss", 1, "1", 300, 0)
	d := drive(w)
	d.rest()
	if described := w.explained("boss", "", false).GetReplicas()[0].GetReason(); !strings.HasSuffix(described, "is the only node that would take it without pushing others out") {
		t.Error(described)
	}
}

// Room reserved for a replica does not block the replica itself.
func TestReservationDoesNotBlockItsOwner(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("batch", 1, "1", 0, 0)
	d := drive(w)
	d.rest()
	w.addRanked("web", 1, "4", 500, 0)
	d.react()
	for _, n := range w.explained("web", "", true).GetNodes() {
		for _, refusal := range n.GetRefusals() {
			if refusal.GetReason() != "needs 4 CPU, 3 of 4 free" {
				t.Errorf("a says %q", refusal.GetReason())
			}
		}
	}
}
