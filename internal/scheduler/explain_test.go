package scheduler_test

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// rendered renders an explanation as one line for each node.
func rendered(e scheduler.Explanation) string {
	var lines []string
	for _, n := range e.Nodes {
		line := fmt.Sprintf("%d %s", n.Rank, n.NodeName)
		switch {
		case len(n.Preemptions) > 0:
			line += fmt.Sprintf(" after %s goes", n.Preemptions[0].Name)
		case n.Rank > 0:
			line += fmt.Sprintf(" %d", n.Score.Total)
		default:
			line += " " + n.String()
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// Every node is judged: those that would take a replica by rank, with the score by
// component, then those that refuse, each with a sentence.
func TestExplainEveryNode(t *testing.T) {
	v := view(
		node("cheap", func(n *scheduler.Node) { n.Price = 1 }),
		node("dear", func(n *scheduler.Node) { n.Price = 10 }),
		node("full"),
		node("off", func(n *scheduler.Node) { n.Unschedulable = "is offline" }),
	)
	run(v, revision("filler", 1800), "full", 1)
	e := v.Explain(scheduler.Question{Revision: revision("web", 500)})
	want := "1 cheap 885000\n2 dear 750000\n" +
		"0 full needs 500m CPU, 200m of 2 free, needs 1000Mi memory, 496Mi of 4Gi free\n0 off is offline"
	if got := rendered(e); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if e.All != 4 || e.Taking != 2 || e.Strategy != scheduler.Pack || e.Weights != scheduler.DefaultWeights || e.Help != nil {
		t.Errorf("the rest is %+v", e)
	}
	if got, want := fmt.Sprint(e.Groups), "[{ready 1 off is offline} {fit 1 full needs 500m CPU, 200m of 2 free, needs 1000Mi memory, 496Mi of 4Gi free}]"; got != want {
		t.Errorf("the groups are %s, want %s", got, want)
	}
	if got, want := e.Why(&e.Nodes[0], &e.Nodes[1]), "its score is 0.885, that of dear 0.75, most of all by cost, 0.9 to 0"; got != want {
		t.Errorf("cheap is first because %s, want %s", got, want)
	}
	if got, want := e.Why(&e.Nodes[0], &e.Nodes[3]), "off refuses: is offline"; got != want {
		t.Errorf("cheap is first because %s, want %s", got, want)
	}
	few := v.Explain(scheduler.Question{Revision: revision("web", 500), Most: 1, Nodes: []string{"uid-off"}})
	if got, want := strings.Fields(rendered(few))[1], "cheap"; got != want || len(few.Nodes) != 3 || few.Nodes[2].NodeName != "off" || few.Taking != 2 {
		t.Errorf("with at most one of a kind and the one that is off:\n%s", rendered(few))
	}
}

// The first criterion in which two nodes differ decides their order.
func TestWhyNamesTheFirstDifference(t *testing.T) {
	prefer := func(t *testing.T) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) {
			r.Preferences.Prefer = []scheduler.PreferredRule{{Rule: rule(t, "disk", scheduler.OpIn, "ssd"), Weight: 7}}
		}
	}
	for _, c := range []struct {
		a, b scheduler.Node
		on   string // where a replica of it is already
		r    *scheduler.Revision
		want string
	}{
		{node("a"), node("b", labelled("disk", "ssd")), "", revision("web", 100, prefer(t)), "b: its preferences weigh 7, those of a 0"},
		{
			node("a", func(n *scheduler.Node) {
				n.Taints = []scheduler.Taint{{Key: "old", Effect: scheduler.PreferNoSchedule}}
			}), node("b"),
			"", revision("web", 100), "b: it has 0 taints to avoid, a 1",
		},
		{node("a", inZone("x")), node("b", inZone("y")), "a", revision("web", 100), "b: its zone has 0 replicas of the workload, that of a 1"},
		{node("a"), node("b"), "a", revision("web", 100), "b: it has 0 replicas of the workload, a 1"},
		{
			node("a"), node("b", func(n *scheduler.Node) { n.Reliability = 500 }), "", revision("web", 100),
			"a: its score is 0.9, that of b 0.75, most of all by reliability, 1 to 0.5",
		},
		{node("a"), node("b"), "", revision("web", 100), "a: it is equal to b in all and comes first by name"},
	} {
		v := view(c.a, c.b)
		if c.on != "" {
			run(v, c.r, c.on, 1)
		}
		e := v.Explain(scheduler.Question{Revision: c.r})
		if got := e.Nodes[0].NodeName + ": " + e.Why(&e.Nodes[0], &e.Nodes[1]); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	v := view(node("a"), node("b"))
	run(v, revision("middle", 2000, priority(50)), "a", 1)
	run(v, revision("low", 2000, priority(5)), "b", 1)
	e := v.Explain(scheduler.Question{Revision: revision("web", 100, priority(200))})
	if got := rendered(e); got != "1 b after low goes\n2 a after middle goes" || e.Taking != 0 || e.Yielding != 2 {
		t.Errorf("got %+v", e)
	}
	if got, want := e.Why(&e.Nodes[0], &e.Nodes[1]), "1 replica of priority 5 would have to go, on a 1 replica of priority 50"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The explanation of a pending replica says what would help.
func TestExplanationSuggestsHelp(t *testing.T) {
	taint := func(n *scheduler.Node) {
		n.Taints = []scheduler.Taint{{Key: "spot", Effect: scheduler.NoSchedule}}
	}
	for _, c := range []struct {
		what string
		v    *scheduler.View
		r    *scheduler.Revision
		want string
	}{
		{"no nodes", view(), revision("web", 100), "a first node: the cluster has none yet"},
		{
			"a taint and a state", view(node("a", taint), node("b", taint), node("c", func(n *scheduler.Node) { n.Unschedulable = "is cordoned" })), revision("web", 100),
			"1 node would fit but for ready: c is cordoned; " +
				"2 nodes would fit but for taints: a has the taint spot:NoSchedule, which is not tolerated (and others for the like)",
		},
		{
			"a taint and a state of the same node", view(node("a", taint, func(n *scheduler.Node) { n.Unschedulable = "is cordoned" })), revision("web", 100),
			"several things at once: a comes nearest, but is cordoned; has the taint spot:NoSchedule, which is not tolerated",
		},
		{
			"a node that is too small", view(node("a"), node("b", cores(8), taint)), revision("web", 4000),
			"1 node would fit but for taints: b has the taint spot:NoSchedule, which is not tolerated; " +
				"a larger node, or a smaller request: it needs 4 CPU, and a, the largest that would do otherwise, has 2; " +
				"a larger node, or a smaller request: it needs 8000Mi memory, and a, the largest that would do otherwise, has 4Gi",
		},
		{
			"what no node has", view(node("a")), revision("web", 100, func(r *scheduler.Revision) { r.Needs.Resources[scheduler.GPU] = 2 }),
			"a larger node, or a smaller request: it needs 2 GPU, and no node that would do otherwise has any",
		},
		{
			"what no machine tells", view(node("a")), revision("web", 100, func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Bandwidth] = 10_000_000 }),
			"a larger node, or a smaller request: it needs 10M bandwidth, and no node that would do otherwise is known to have any: say what a link carries with cloudless node set NODE --bandwidth",
		},
		{
			"two rules about one label", view(node("a")), revision("web", 100, func(r *scheduler.Revision) {
				r.Needs.Rules = []scheduler.Rule{rule(t, "cores", scheduler.OpGreater, "4"), rule(t, "cores", scheduler.OpLess, "9")}
			}),
			"1 node would fit but for labels: a label cores is missing",
		},
		{
			"one that must be near", view(node("a")), revision("web", 100, func(r *scheduler.Revision) {
				r.Preferences.Affinity = []scheduler.Affinity{{Workload: "db", Key: scheduler.KeyNode}}
			}),
			"1 node would fit but for affinity: a is refused because no replica of db is on it, nor anywhere else",
		},
		{
			"what lacks the least is the one that is named", func() *scheduler.View {
				v := view(node("a"), node("b"))
				filler := func(n int64) *scheduler.Revision {
					return revision(fmt.Sprint("filler-", n), n, func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Memory] = 0 })
				}
				run(v, filler(2900), "a", 1) // it was larger
				run(v, filler(2100), "b", 1)
				return v
			}(), revision("web", 500), "1 node would fit after 600m CPU is freed; the largest free is 0 on b",
		},
		{
			"a service that keeps what it needs", func() *scheduler.View {
				v := view(node("a"), node("b"))
				for _, on := range []string{"a", "b"} {
					run(v, revision("service", 2000, priority(200), func(r *scheduler.Revision) { r.MinAvailable = 2 }), on, 1)
				}
				return v
			}(), revision("web", 500, priority(300)),
			"2 nodes could be made free but for the minAvailable of service, which keeps 2; " +
				"a lacks the least: 500m CPU and 904Mi memory would have to be freed",
		},
		{
			"one that must be far", func() *scheduler.View {
				v := view(node("a", func(n *scheduler.Node) { n.Zone = "z1" }))
				run(v, revision("db", 100), "a", 1)
				return v
			}(), revision("web", 100, func(r *scheduler.Revision) {
				r.Preferences.Affinity = []scheduler.Affinity{{Workload: "db", Key: scheduler.KeyZone, Anti: true}}
			}),
			"1 node would fit but for affinity: a is refused because a replica of db is in its zone",
		},
		{
			"two resources at once", func() *scheduler.View {
				v := view(node("a"), node("b"))
				run(v, revision("filler", 1800), "a", 1)
				run(v, revision("filler", 1800), "b", 1)
				return v
			}(), revision("web", 500), "a lacks the least: 300m CPU and 504Mi memory would have to be freed",
		},
		{
			"a quota, though there is room", func() *scheduler.View {
				v := view(node("a"), node("b"))
				run(v, revision("filler", 1800, func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Memory] = 0 }), "b", 1)
				v.SetQuota("default", scheduler.Quota{Replicas: scheduler.NoneAtAll})
				return v
			}(), revision("web", 500), "a higher quota of namespace default",
		},
	} {
		if got := strings.Join(c.v.Explain(scheduler.Question{Revision: c.r}).Help, "; "); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.what, got, c.want)
		}
	}
}

// byWords orders nodes by what the documentation says and an explanation shows.
func byWords(e *scheduler.Explanation) func(a, b scheduler.Judgement) int {
	return func(a, b scheduler.Judgement) int {
		order := cmp.Or(cmp.Compare(b.Score.Affinity, a.Score.Affinity), cmp.Compare(a.Score.Avoided, b.Score.Avoided), slices.Compare(a.Same, b.Same))
		if order == 0 && e.LevelsNodes {
			order = cmp.Compare(a.Score.SameNode, b.Score.SameNode)
		}
		return cmp.Or(order, cmp.Compare(b.Score.Total, a.Score.Total), cmp.Compare(a.NodeName, b.NodeName))
	}
}

// Explanations agree with plans: the plan takes the node of rank 1, with the same score and
// the same victims; refusing nodes are never taken; the ranks follow from what is shown;
// and asking changes nothing.
func TestExplanationAgreesWithThePlan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		v := m.view(m.inOrder())
		r := revisions["w1"]
		var without []string
		if len(m.replicas) > 0 && rapid.Bool().Draw(t, "without") {
			gone := rapid.IntRange(0, len(m.replicas)-1).Draw(t, "gone")
			without = []string{m.replicas[gone].uid}
			m = m.clone()
			m.replicas = slices.Delete(m.replicas, gone, gone+1)
		}
		e := v.Explain(scheduler.Question{Revision: r, Without: without})
		request := scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: 1}}, Without: without}
		plan := v.Plan(request)
		if again := v.Explain(scheduler.Question{Revision: r, Without: without}); !reflect.DeepEqual(e, again) {
			t.Fatalf("asked again, it is\n%+v\nafter\n%+v", again, e)
		}
		agree(t, e, plan)
		if e.All != len(m.nodes) || len(e.Nodes) != e.All {
			t.Fatalf("%d of %d nodes are listed", len(e.Nodes), len(m.nodes))
		}
		for _, n := range e.Nodes {
			i := m.index(n.Node)
			if takes := m.rules(i, r) && m.fits(i, r) && m.topology(i, r); takes != (n.Rank > 0 && len(n.Refusals) == 0) {
				t.Fatalf("%+v, but that it would take it is %v", n, takes)
			}
		}
		if !slices.IsSortedFunc(e.Nodes[:e.Taking], byWords(&e)) {
			t.Fatalf("the ranks do not follow from what is shown: %+v", e.Nodes)
		}
		for _, n := range e.Nodes[:e.Taking] {
			w, s := e.Weights, n.Score
			if sum := w.Locality*s.Locality + w.Reliability*s.Reliability + w.Cost*s.Cost + w.Utilization*s.Utilization + w.Network*s.Network; sum != s.Total {
				t.Fatalf("the components of %+v are %d together", n, sum)
			}
		}
		for k := 1; k < e.Taking+e.Yielding; k++ {
			if e.Why(&e.Nodes[k-1], &e.Nodes[k]) == "" {
				t.Fatalf("nothing is said about %+v before %+v", e.Nodes[k-1], e.Nodes[k])
			}
		}
	})
}

func agree(t *rapid.T, e scheduler.Explanation, plan scheduler.Plan) {
	if len(plan.Placements) == 0 {
		if e.Quota == "" && e.Taking+e.Yielding > 0 {
			t.Fatalf("nothing is placed, but %+v would take it", e.Nodes[0])
		}
		if u := plan.Unplaced[0]; u.Quota != e.Quota || !reflect.DeepEqual(u.Groups, e.Groups) {
			t.Fatalf("the plan says %+v and the explanation %+v", u, e)
		}
		return
	}
	placed, first := plan.Placements[0], e.Nodes[0]
	if first.Rank != 1 || first.Node != placed.Node || e.Quota != "" {
		t.Fatalf("%+v is placed, but the first is %+v", placed, first)
	}
	if placed.Preempts != (e.Taking == 0) || !reflect.DeepEqual(plan.Preemptions, first.Preemptions) {
		t.Fatalf("%+v go, but %+v", plan.Preemptions, first.Preemptions)
	}
	if !placed.Preempts && placed.Score != first.Score {
		t.Fatalf("the score is %+v and %+v", placed.Score, first.Score)
	}
}

// A plan of several replicas places one after the other, each on the first node of an
// explanation at that moment.
func TestSeveralReplicasArePlacedOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		v := m.view(m.inOrder())
		v.SetOptions(scheduler.Options{})
		r := revisions["w1"]
		count := rapid.IntRange(1, 8).Draw(t, "count")
		plan := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: count}}})
		for i := range count {
			e := v.Explain(scheduler.Question{Revision: r, Most: 1})
			if i >= len(plan.Placements) {
				if e.Taking > 0 && e.Quota == "" {
					t.Fatalf("%d are placed, and one more could be on %+v", i, e.Nodes[0])
				}
				return
			}
			p := plan.Placements[i]
			if e.Taking == 0 || e.Nodes[0].Node != p.Node || e.Nodes[0].Score != p.Score {
				t.Fatalf("replica %d goes to %+v, but the first is %+v", i, p, e.Nodes)
			}
			v.ApplyReplica(fmt.Sprint("new", i), r, p.Node)
		}
	})
}

// A review equals the explanation of the replica's node without the replica.
func TestReviewMatchesTheExplanation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, _ := anyCluster(t)
		v := m.view(m.inOrder())
		v.SetOptions(scheduler.Options{})
		for _, o := range m.replicas {
			e := v.Explain(scheduler.Question{Revision: o.r, Without: []string{o.uid}})
			s, known := v.Review(o.uid)
			own := e.Nodes[slices.IndexFunc(e.Nodes, func(n scheduler.Judgement) bool { return n.Node == m.nodes[o.node].UID })]
			if !known || !reflect.DeepEqual(s.Own, own) || s.Taking != e.Taking {
				t.Fatalf("%+v stands as %+v, but\n%+v", o, s, e)
			}
			var other scheduler.Judgement
			switch {
			case own.Rank != 1 && e.Taking > 0:
				other = e.Nodes[0]
			case own.Rank == 1 && e.Taking > 1:
				other = e.Nodes[1]
			}
			if !reflect.DeepEqual(s.Other, other) {
				t.Fatalf("the other is %+v, not %+v", s.Other, other)
			}
		}
		if _, known := v.Review("unknown"); known {
			t.Fatal("an unknown replica has a review")
		}
	})
}

// Scaling down levels over the same keys as scaling up.
func TestLevelsMatchTheExplanation(t *testing.T) {
	v := view(node("a"))
	for _, strategy := range []scheduler.Strategy{scheduler.Pack, scheduler.BestFit, scheduler.Even} {
		for _, spread := range [][]scheduler.Spread{nil, {{Key: "rack"}, {Key: scheduler.KeyZone}}, {{Key: "rack"}}} {
			r := revision("web", 500)
			r.Preferences.Strategy, r.Preferences.Spread = strategy, spread
			e := v.Explain(scheduler.Question{Revision: r})
			want := slices.Clone(e.Levels)
			if e.LevelsNodes {
				want = append(want, scheduler.KeyNode)
			}
			if got := r.Preferences.Levels(); !slices.Equal(got, want) {
				t.Errorf("by %v, over %v: %v, and the explanation says %v", strategy, spread, got, want)
			}
		}
	}
}
