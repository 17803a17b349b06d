package scheduler_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

func onEach(r *scheduler.Revision, nodes ...string) scheduler.Request {
	return scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Pinned: true, On: nodes}}}
}

func TestOneOnEachNode(t *testing.T) {
	v := view(node("a", cores(1)), node("b", cores(1)), node("c", cores(1)))
	run(v, revision("full", 800), "b", 1)
	logs := revision("logs", 500)
	plan := v.Plan(onEach(logs, "uid-a", "uid-b", "gone"))
	if got := places(plan); got != "a" {
		t.Errorf("placed on %q", got)
	}
	u := plan.Unplaced[0]
	var reasons []string
	for _, n := range u.Nodes {
		reasons = append(reasons, n.Node+" "+n.String())
	}
	if got, want := strings.Join(reasons, "; "), "uid-b needs 500m CPU, 200m of 1 free, needs 1000Mi memory, 448Mi of 2Gi free; gone does not exist any more"; u.Count != 2 || got != want {
		t.Errorf("%d left over: %s\nwant %s", u.Count, got, want)
	}
	if got := v.Plan(onEach(logs, "uid-a", "uid-a", "uid-a")); len(got.Placements) != 2 || len(got.Unplaced) != 1 {
		t.Errorf("a node takes more than it has: %+v", got)
	}
}

func TestOneOnEachNodeMayPreempt(t *testing.T) {
	v := scheduler.NewView(scheduler.Options{Preempt: true})
	v.ApplyNode(node("a", cores(1)))
	v.ApplyNode(node("b", cores(1)))
	low := revision("low", 800)
	run(v, low, "a", 1)
	plan := v.Plan(onEach(revision("logs", 500, priority(500)), "uid-a"))
	if places(plan) != "a" || victims(plan) == "" {
		t.Errorf("placed on %q in the place of %q", places(plan), victims(plan))
	}
}

// A replica that waits for a node is woken by that node and by no other.
func TestWakeOnOneNode(t *testing.T) {
	v := view(node("a", cores(1)), node("b", cores(1)))
	fullA, fullB := run(v, revision("full-a", 800), "a", 1), run(v, revision("full-b", 800), "b", 1)
	logs := revision("logs", 500)
	v.WaitOn(logs, []string{"uid-a"})
	v.RemoveReplica(fullB[0])
	if got := v.Wake(); len(got) > 0 {
		t.Errorf("woken by another node: %v", got)
	}
	v.RemoveReplica(fullA[0])
	if got := v.Wake(); !slices.Equal(got, []string{logs.Workload}) {
		t.Errorf("woken by its node: %v", got)
	}
	if got := v.Wake(); len(got) > 0 {
		t.Errorf("woken twice: %v", got)
	}
}

func TestSuits(t *testing.T) {
	tainted := func(effect string) func(*scheduler.Node) {
		return func(n *scheduler.Node) { n.Taints = []scheduler.Taint{{Key: "k", Value: "v", Effect: effect}} }
	}
	logs := revision("logs", 500, func(r *scheduler.Revision) {
		r.Needs.Driver = "container"
		r.Needs.Rules = []scheduler.Rule{rule(t, "disk", scheduler.OpIn, "ssd"), rule(t, spec.LabelName, scheduler.OpIn, "a")}
	})
	ssd := func(n *scheduler.Node) {
		n.Labels = map[string]string{"disk": "ssd"}
		n.Drivers = []string{"container"}
	}
	for _, c := range []struct {
		name         string
		node         scheduler.Node
		takes, keeps bool
	}{
		{"one that suits", node("a", ssd), true, true},
		{"one that is full suits too", node("a", ssd, cores(0)), true, true},
		{"one without the label", node("a"), false, false},
		{"one that is called otherwise", node("b", ssd), false, false},
		{"one that is cordoned", node("a", ssd, func(n *scheduler.Node) { n.Unschedulable = "is cordoned" }), false, true},
		{"one whose driver is away", node("a", ssd, func(n *scheduler.Node) { n.Drivers = nil }), false, true},
		{"one that wants nothing new", node("a", ssd, tainted(scheduler.NoSchedule)), false, true},
		{"one that wants nothing at all", node("a", ssd, tainted(scheduler.NoExecute)), false, false},
		{"one that would rather not", node("a", ssd, tainted(scheduler.PreferNoSchedule)), true, true},
	} {
		want := scheduler.Suit{Node: c.node.UID, NodeName: c.node.Name, Takes: c.takes, Keeps: c.keeps}
		if got := view(c.node).Suits(logs); len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v", c.name, got)
		}
		if got := scheduler.SuitOf(logs, &c.node); got != want {
			t.Errorf("%s without a view: %+v", c.name, got)
		}
	}
}

// No node is over capacity, no rule is broken, exactly those replicas are unplaced that the
// model refuses, and the same input gives the same plan.
func TestOneOnEachNodeKeepsItsGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		names := make([]string, 0, len(revisions))
		for name := range revisions {
			names = append(names, name)
		}
		slices.Sort(names)
		r := revisions[rapid.SampledFrom(names).Draw(t, "revision")]
		order := make([]int, len(m.nodes))
		var on []string
		for i := range m.nodes {
			order[i] = i
			if rapid.Bool().Draw(t, fmt.Sprint("on ", i)) {
				on = append(on, m.nodes[i].UID)
			}
		}
		if len(on) == 0 {
			return
		}
		plan := func() scheduler.Plan {
			v := m.view(order)
			v.SetOptions(scheduler.Options{}) // without preemption
			return v.Plan(onEach(r, on...))
		}
		first := plan()
		slices.Reverse(order)
		if again := plan(); !reflect.DeepEqual(first, again) {
			t.Fatalf("the same input gives\n%+v\n%+v", first, again)
		}
		placed := map[string]bool{}
		for _, p := range first.Placements {
			placed[p.Node] = true
		}
		for _, uid := range on {
			i := m.index(uid)
			if takes := m.takes(i, r); takes != placed[uid] {
				t.Fatalf("%s is placed: %v, the model takes it: %v", uid, placed[uid], takes)
			}
			if placed[uid] {
				m.replicas = append(m.replicas, running{uid: "new-" + uid, r: r, node: i})
			}
		}
	})
}
