package replicas

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// racingLog is a log in which something happens between a plan and its commit.
type racingLog struct {
	*driven
	before []func()
	tried  int
	// returned is whether an offline node came back right before the last commit, with
	// replicas that count against their quotas again.
	returned bool
}

func (m *racingLog) Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error) {
	_, result, err := m.commit(ctx, tx)
	return result, err
}

// commit also returns the state right before the commit.
func (m *racingLog) commit(ctx context.Context, tx *statev1.Transaction) (*state.Snapshot, state.Result, error) {
	m.tried++
	planned := m.snap()
	if len(m.before) > 0 {
		first := m.before[0]
		m.before = m.before[1:]
		first()
	}
	before := m.snap()
	m.returned = returned(planned, before)
	result, err := m.driven.Propose(ctx, tx)
	return before, result, err
}

// returned reports whether a node has come back between two states.
func returned(before, after *state.Snapshot) bool {
	for n := range after.Nodes("") {
		was := before.Node(n.GetMetadata().GetUid())
		if was.GetStatus().GetState() == spec.NodeOffline && n.GetStatus().GetState() != spec.NodeOffline {
			return true
		}
	}
	return false
}

// placedBy lists the replicas that a commit placed.
func placedBy(before *state.Snapshot, result state.Result) (placed []*v1.Replica) {
	for _, o := range result.Objects {
		r, ok := o.(*v1.Replica)
		if ok && r.GetStatus().GetPhase() == spec.PhasePlaced && before.Replica(r.GetMetadata().GetUid()).GetSpec().GetNodeUid() == "" {
			placed = append(placed, r)
		}
	}
	return placed
}

// editNode changes a node, if it exists.
func (w *world) editNode(name string, edit func(*v1.Node)) {
	w.t.Helper()
	if old := w.snap().NodeByName(name); old != nil {
		n := proto.CloneOf(old)
		if n.Spec == nil {
			n.Spec = &v1.NodeSpec{}
		}
		edit(n)
		w.change(func(b *state.Batch) { b.Update(n, old.GetMetadata().GetVersion()) })
	}
}

// A replica that no longer fits at the commit is planned again and goes elsewhere. The rest
// of the plan is not delayed.
func TestChangedNodeIsLeftOutOfTheCommit(t *testing.T) {
	for what, change := range map[string]func(w *world){
		"cordoned": func(w *world) { w.setNode("a", "cordoned") },
		"offline":  func(w *world) { w.setNode("a", "offline") },
		"tainted":  func(w *world) { w.taint("a", &v1.Taint{Key: "out", Effect: scheduler.NoSchedule}) },
		"smaller":  func(w *world) { w.editNode("a", func(n *v1.Node) { n.Status.Capacity.Cpu = "1" }) },
		"relabelled": func(w *world) {
			w.editNode("a", func(n *v1.Node) { n.Metadata.Labels["disk"] = "hdd" })
		},
		"removed": func(w *world) { w.removeNode("a") },
	} {
		w := newWorld(t)
		for _, name := range []string{"a", "b"} {
			w.addNode(name, "2")
			w.editNode(name, func(n *v1.Node) { n.Metadata.Labels["disk"] = "ssd" })
		}
		d := drive(w)
		var first map[string]int
		m := &racingLog{driven: d, before: []func(){func() { change(w) }, func() { first = w.phases("web") }}}
		d.loop.Proposer = m
		made := newWorkload(w.newUID(), "web", 2, "2")
		made.Spec.Placement = &v1.Placement{Labels: map[string]string{"disk": "ssd"}}
		w.change(func(b *state.Batch) { w.revise(b, made); b.Create(made) })
		d.react()
		d.wantWhere("web", " pending", "b placed")
		if first[spec.PhasePlaced] != 1 || len(first) != 1 || m.tried != 2 {
			t.Errorf("%s: the first commit brought %v, and there were %d", what, first, m.tried)
		}
		w.checkCapacity()
	}
}

// A node with an unrelated change is only checked once more.
func TestUnrelatedNodeChangeDelaysOnlyOnce(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "2")
	d := drive(w)
	d.loop.Proposer = &racingLog{driven: d, before: []func(){func() {
		w.editNode("a", func(n *v1.Node) { n.Status.Reliability = &v1.Reliability{Score: 90} })
	}}}
	w.addWorkload("web", 2, "1")
	d.react()
	d.wantWhere("web", "a placed", "a placed")
}

// The configuration sets how much of a node may be promised.
func TestConfigurationChangedBeforeTheCommitIsRespected(t *testing.T) {
	w := newWorld(t)
	w.change(func(b *state.Batch) {
		b.Create(&v1.Cluster{Metadata: &v1.Metadata{Uid: w.newUID(), Name: "cluster"}, Spec: &v1.ClusterSpec{}})
	})
	w.addNode("a", "2")
	d := drive(w)
	d.loop.Proposer = &racingLog{driven: d, before: []func(){func() {
		c := proto.CloneOf(w.snap().Cluster())
		c.Spec.Reserved = &v1.ResourceAmounts{Cpu: "1"}
		w.change(func(b *state.Batch) { b.Update(c, c.GetMetadata().GetVersion()) })
	}}}
	w.addWorkload("web", 2, "1")
	d.react()
	d.wantWhere("web", " pending", "a placed")
}

// If the preemptor is planned again, its victims stay.
func TestNoPreemptionForALeftOutPlacement(t *testing.T) {
	d := full(t)
	d.loop.Proposer = &racingLog{driven: d, before: []func(){func() { d.setNode("a", "cordoned") }}}
	d.addRanked("web", 1, "1", 500, 0)
	d.react()
	d.wantWhere("web", " pending")
	d.wantWhere("batch", "a running", "a running", "a running", "a running")
	if why := d.of("web")[0].GetStatus().GetReason(); !strings.Contains(why, "is cordoned") {
		t.Errorf("web waits because %q", why)
	}
}

// drawRace draws a change of a node.
func drawRace(t *rapid.T, w *world) func() {
	name := rapid.SampledFrom(nodeNames).Draw(t, "racingLog")
	what := rapid.SampledFrom([]string{"cordon", "offline", "ready", "taint", "shrink", "remove", "score", "end"}).Draw(t, "how")
	return func() {
		if w.snap().NodeByName(name) == nil {
			return
		}
		switch what {
		case "cordon":
			w.setNode(name, "cordoned")
		case "offline", "ready":
			w.setNode(name, what)
		case "taint":
			w.taint(name, &v1.Taint{Key: "out", Effect: scheduler.NoSchedule})
		case "shrink":
			// Not below what is promised already, because no plan could prevent that.
			requested := Placement{}.Requested(w.snap(), w.snap().NodeByName(name).GetMetadata().GetUid())
			w.editNode(name, func(n *v1.Node) { n.Status.Capacity.Cpu = requested.GetCpu() })
		case "remove":
			w.removeNode(name)
		case "score":
			w.editNode(name, func(n *v1.Node) { n.Status.Reliability = &v1.Reliability{Score: 50} })
		case "end":
			w.work()
		}
	}
}

// Whatever happens between plan and commit: no node is overcommitted, no replica is placed
// where it must not be, no replica is preempted without right, and the loop comes to rest.
func TestCommitBreaksNoRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for i, name := range nodeNames {
			w.addNode(name, fmt.Sprint(2+2*i))
		}
		d := drive(w)
		m := &racingLog{driven: d}
		d.loop.Proposer = committed{m}
		for _, s := range drawSteps(t) {
			if s.what == "tick" || w.snap().NodeByName(s.node) == nil {
				continue
			}
			w.take(s)
			for range rapid.IntRange(0, 2).Draw(t, "races") {
				m.before = append(m.before, drawRace(t, w))
			}
			d.react()
		}
		m.before = nil
		d.rest()
		w.checkCapacity()
	})
}

// committed checks the result of each commit.
type committed struct{ *racingLog }

func (c committed) Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error) {
	before, result, err := c.commit(ctx, tx)
	after := c.snap()
	for _, r := range placedBy(before, result) {
		n := before.Node(r.GetSpec().GetNodeUid())
		if n.GetStatus().GetState() != "ready" || len(n.GetSpec().GetTaints()) > 0 {
			c.t.Fatalf("%s was placed on %v", r.GetMetadata().GetName(), n)
		}
		has, _ := spec.ParseCPU(n.GetStatus().GetCapacity().GetCpu())
		if wants, _ := spec.ParseCPU(Placement{}.Requested(after, n.GetMetadata().GetUid()).GetCpu()); wants > has {
			c.t.Fatalf("node %s has %d thousandths of a CPU and has promised %d", n.GetMetadata().GetName(), has, wants)
		}
	}
	if err == nil {
		c.checkPreemptions(before)
	}
	// Replicas that were left out may hold some of the room. A node that is back may exceed
	// a quota, as it may at any time after the commit.
	if len(result.LeftOut) == 0 && !c.returned {
		c.checkHeld(before)
	}
	return result, err
}

// Replicas bound by affinity rules are committed together.
func TestAffinityGroupIsCommittedTogether(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "2")
	w.addNode("b", "2")
	d := drive(w)
	m := &racingLog{driven: d, before: []func(){func() { w.setNode("a", "cordoned") }}}
	d.loop.Proposer = m
	made := newWorkload(w.newUID(), "web", 4, "1")
	made.Spec.Placement = &v1.Placement{Spread: []*v1.Spread{{Key: "node", MaxSkew: 1}}}
	w.change(func(b *state.Batch) { w.revise(b, made); b.Create(made) })
	m.before = append(m.before, func() {
		if got := w.of("web"); len(got) != 0 {
			t.Errorf("%d are placed without the others", len(got))
		}
	})
	d.react()
	d.wantWhere("web", " pending", " pending", "b placed", "b placed") // the node that takes nothing does not count
}

// A replica on an offline node is covered only if it has not completed by the time of the
// commit: an agent that comes back reports the outcome of its replicas first.
func TestFinishedWorkIsNotCovered(t *testing.T) {
	for what, add := range map[string]func(w *world){
		"a job":                   func(w *world) { w.addJob("work", 1, 1, 0) },
		"a service run once":      func(w *world) { w.addService("work", 1, "never") },
		"a service until success": func(w *world) { w.addService("work", 1, "on-failure") },
	} {
		w := newWorld(t)
		w.addNode("a", "4")
		add(w)
		w.settle()
		w.addNode("b", "4")
		d := drive(w)
		d.loop.Proposer = &racingLog{driven: d, before: []func(){func() { w.end("work", spec.PhaseCompleted, w.now()) }}}
		w.setNode("a", "offline")
		d.react()
		if got := w.phases("work"); got[spec.PhaseCompleted] != 1 || len(got) != 1 {
			t.Errorf("%s that completed before the commit: the replicas are %v", what, got)
		}
	}
}

// A job whose replicas end all the time still gets covers for those on an offline node.
func TestEndingReplicasDoNotDelayACover(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addJob("work", 9, 2, 0)
	w.settle()
	w.addNode("b", "1")
	w.settle()
	w.addNode("c", "1")
	d := drive(w)
	d.loop.Proposer = &racingLog{driven: d, before: []func(){
		func() { w.endOn("b", spec.PhaseCompleted) },
		func() { w.wantWhere("work", "a running", "c placed") },
	}}
	w.setNode("a", "offline")
	d.react()
	w.wantWhere("work", "a running", "b placed", "c placed")
}

// Losing one replica of an offline node does not delay the cover of another.
func TestLossDoesNotDelayACover(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addService("work", 2, "never")
	w.settle()
	w.scale("work", 1)
	w.tick() // one is stopped
	w.addNode("b", "4")
	d := drive(w)
	m := &racingLog{driven: d}
	d.loop.Proposer = m
	w.setNode("a", "offline")
	d.react()
	if d.wantWhere("work", "a running", "b placed"); m.tried != 1 {
		t.Errorf("it took %d proposals", m.tried)
	}
}
