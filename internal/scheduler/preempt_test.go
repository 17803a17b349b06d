package scheduler_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
)

func priority(n int) func(*scheduler.Revision) {
	return func(r *scheduler.Revision) { r.Priority = n }
}

// victims are the workloads of the replicas that have to leave.
func victims(p scheduler.Plan) string {
	var names []string
	for _, one := range p.Preemptions {
		names = append(names, one.Name+"@"+one.NodeName)
	}
	return strings.Join(names, " ")
}

// If several nodes cost the same, the one wins that would win if they were empty: by
// preferences, evenly over zones and nodes, and the cheaper one.
func TestPreemptionTiesGoToTheBestNode(t *testing.T) {
	priced := func(n int64) func(*scheduler.Node) { return func(node *scheduler.Node) { node.Price = n } }
	prefer := func(r *scheduler.Revision) {
		r.Preferences.Prefer = []scheduler.PreferredRule{{Rule: rule(t, "disk", scheduler.OpIn, "ssd"), Weight: 1}}
	}
	for what, c := range map[string]struct {
		nodes []scheduler.Node
		web   *scheduler.Revision
		count int
		on    string
	}{
		"over nodes": {
			[]scheduler.Node{node("a"), node("b"), node("c")}, revision("web", 1000), 4, "a b c a",
		},
		"over zones": {
			[]scheduler.Node{node("a", inZone("x")), node("b", inZone("x")), node("c", inZone("y"))}, revision("web", 1000), 4, "a c b c",
		},
		"preferred": {
			[]scheduler.Node{node("a"), node("b", labelled("disk", "ssd"))}, revision("web", 1000, prefer), 3, "b b a",
		},
		"cheaper": {
			[]scheduler.Node{node("a", priced(9)), node("b", priced(1))}, revision("web", 1000), 1, "b",
		},
	} {
		v := view(c.nodes...)
		for _, n := range c.nodes {
			run(v, revision("batch", 1000, priority(0)), n.Name, 2)
		}
		c.web.Priority = 500
		if plan := v.Plan(ask(c.web, c.count)); places(plan) != c.on || len(plan.Preemptions) != c.count {
			t.Errorf("%s: room is made on %q, want %q", what, places(plan), c.on)
		}
	}
}

// A replica that may not share a node with a more important one is evicted, whatever room
// there is and whichever of the two has the rule. It has to leave before the other comes.
func TestAntiAffinityEvictsLessImportant(t *testing.T) {
	away := func(from string) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) {
			r.Preferences.Affinity = []scheduler.Affinity{{Workload: from, Key: scheduler.KeyNode, Anti: true}}
		}
	}
	plain := func(*scheduler.Revision) {}
	for what, c := range map[string]struct {
		noisy, web func(*scheduler.Revision)
		priority   int
		gone       string
	}{
		"the important one does not want it":       {plain, away("noisy"), 500, "noisy@a"},
		"the other one does not want it":           {away("web"), plain, 500, "noisy@a"},
		"one that may not preempt":                 {plain, away("noisy"), 100, ""},
		"one that is no more important than those": {plain, away("noisy"), 200, ""},
	} {
		v := view(node("a"))
		noisy := run(v, revision("noisy", 100, priority(200), c.noisy), "a", 1)
		web := revision("web", 100, priority(c.priority), c.web)
		plan := v.Plan(ask(web, 1))
		if victims(plan) != c.gone || (len(plan.Placements) == 1) != (c.gone != "") {
			t.Errorf("%s: the plan is %+v", what, plan)
		}
		if c.gone == "" {
			continue
		}
		again := holds(ask(web, 1), begun(v, ask(web, 1), plan))
		if plan := v.Plan(again); len(plan.Held) != 1 || len(plan.Placements) != 0 {
			t.Errorf("%s: while it leaves the plan is %+v", what, plan)
		}
		v.RemoveReplica(noisy[0])
		if plan := v.Plan(again); places(plan) != "a" || plan.Placements[0].Preempts {
			t.Errorf("%s: when it has left the plan is %+v", what, plan)
		}
	}
	// Replicas of one workload keep away from each other, too, and none is evicted for
	// another.
	v := view(node("a"))
	web := revision("web", 100, priority(500), away("web"))
	run(v, web, "a", 1)
	if plan := v.Plan(ask(web, 1)); len(plan.Placements)+len(plan.Preemptions) != 0 {
		t.Errorf("of those that keep away from each other: %+v", plan)
	}
}

// An important workload preempts as few and as unimportant replicas as possible, and only
// if that makes room.
func TestPreemption(t *testing.T) {
	type there struct {
		node  string
		r     *scheduler.Revision
		count int
	}
	ports := func(r *scheduler.Revision) { r.Needs.Ports = []scheduler.Port{{Number: 80, Protocol: "tcp"}} }
	available := func(n int) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) { r.MinAvailable = n }
	}
	for _, c := range []struct {
		what  string
		there []there
		r     *scheduler.Revision
		count int
		gone  string
		on    string
	}{
		{
			"the lowest priority goes",
			[]there{{"a", revision("low", 2000, priority(10)), 1}, {"b", revision("lower", 2000, priority(5)), 1}},
			revision("web", 1000, priority(200)), 1, "lower@b", "b",
		},
		{
			"of one priority, the fewest go",
			[]there{{"a", revision("small", 500, priority(10)), 4}, {"b", revision("large", 1000, priority(10)), 2}},
			revision("web", 1000, priority(200)), 1, "large@b", "b",
		},
		{
			"what need not go stays",
			[]there{{"a", revision("tiny", 200, priority(1)), 1}, {"a", revision("large", 1800, priority(2)), 1}, {"b", revision("full", 2000, priority(900)), 1}},
			revision("web", 1000, priority(200)), 1, "large@a", "a",
		},
		{
			"one that makes room alone goes rather than two that come first",
			[]there{{"a", revision("vx", 500, priority(0)), 1}, {"a", revision("vy", 500, priority(0)), 1}, {"a", revision("vz", 1000, priority(0)), 1}, {"b", revision("full", 2000, priority(900)), 1}},
			revision("web", 1000, priority(200)), 1, "vz@a", "a",
		},
		{
			"of those that make room alone the smallest goes",
			[]there{{"a", revision("half", 1000, priority(0)), 1}, {"a", revision("third", 700, priority(0)), 1}, {"b", revision("full", 2000, priority(900)), 1}},
			revision("web", 1000, priority(200)), 1, "third@a", "a",
		},
		{
			"who must stay is not counted upon",
			[]there{
				{"a", revision("small", 500, priority(200)), 2},
				{"a", revision("large", 1000, priority(200), available(1)), 1},
				{"b", revision("full", 2000, priority(900)), 1},
			},
			revision("web", 1000, priority(300)), 1, "small@a small@a", "a",
		},
		{
			"what is usual may push out nothing",
			[]there{{"a", revision("low", 2000, priority(0)), 1}, {"b", revision("lower", 2000, priority(0)), 1}},
			revision("web", 1000, priority(100)), 1, "", "",
		},
		{
			"an equal priority stays",
			[]there{{"a", revision("same", 2000, priority(200)), 1}, {"b", revision("same", 2000, priority(200)), 1}},
			revision("web", 1000, priority(200)), 1, "", "",
		},
		{
			"nothing goes in vain",
			[]there{{"a", revision("low", 500, priority(10)), 1}, {"a", revision("high", 1500, priority(300)), 1}, {"b", revision("full", 2000, priority(900)), 1}},
			revision("web", 1000, priority(200)), 1, "", "",
		},
		{
			"a service keeps what it needs",
			[]there{{"a", revision("service", 1000, priority(200), available(3)), 2}, {"b", revision("service", 1000, priority(200), available(3)), 2}},
			revision("web", 1000, priority(300)), 2, "service@a", "a",
		},
		{
			"unless the priority is of another class",
			[]there{{"a", revision("service", 1000, priority(200), available(3)), 2}, {"b", revision("service", 1000, priority(200), available(3)), 2}},
			revision("web", 1000, priority(600)), 2, "service@a service@b", "a b",
		},
		{
			"who has the port goes",
			[]there{{"a", revision("ported", 100, priority(50), ports), 1}, {"b", revision("ported", 100, priority(60), ports), 1}},
			revision("web", 100, priority(200), ports), 1, "ported@a", "a",
		},
		{
			"several make room one after the other",
			[]there{{"a", revision("low", 1000, priority(10)), 2}, {"b", revision("middle", 1000, priority(20)), 2}},
			revision("web", 1000, priority(200)), 3, "low@a low@a middle@b", "a a b",
		},
	} {
		v := view(node("a"), node("b"))
		for _, one := range c.there {
			run(v, one.r, one.node, one.count)
		}
		plan := v.Plan(ask(c.r, c.count))
		if gone, on := victims(plan), places(plan); gone != c.gone || on != c.on {
			t.Errorf("%s: %q goes for %q, want %q for %q", c.what, gone, on, c.gone, c.on)
		}
		for _, p := range plan.Preemptions {
			if !plan.Placements[p.Placement].Preempts || plan.Placements[p.Placement].Node != p.Node {
				t.Errorf("%s: %+v is for %+v", c.what, p, plan.Placements[p.Placement])
			}
		}
	}
}

// The victims are the cheapest of all sets on all nodes: the highest priority that leaves
// is as low as possible, then they are as few as possible, then the sum of their priorities
// is the smallest. The test tries all sets.
func TestVictimsAreTheCheapest(t *testing.T) {
	type occupant struct {
		uid      string
		needs    scheduler.Resources
		priority int
	}
	type cost struct{ highest, count, sum int }
	less := func(a, b cost) bool {
		return cmp.Or(cmp.Compare(a.highest, b.highest), cmp.Compare(a.count, b.count), cmp.Compare(a.sum, b.sum)) < 0
	}
	resources := func(t *rapid.T, most int64) (r scheduler.Resources) {
		r[scheduler.CPU] = 100 * rapid.Int64Range(1, most).Draw(t, "cpu")
		r[scheduler.Memory] = rapid.Int64Range(0, most).Draw(t, "memory") << 27
		return r
	}
	with := func(r scheduler.Resources) func(*scheduler.Revision) {
		return func(of *scheduler.Revision) { of.Needs.Resources = r }
	}
	fits := func(need, free scheduler.Resources) bool {
		return need[scheduler.CPU] <= free[scheduler.CPU] && need[scheduler.Memory] <= max(0, free[scheduler.Memory])
	}
	rapid.Check(t, func(t *rapid.T) {
		v := view()
		on := map[string][]occupant{}
		free := map[string]scheduler.Resources{}
		for i := range rapid.IntRange(1, 3).Draw(t, "nodes") {
			name := fmt.Sprint(i)
			n := node(name)
			v.ApplyNode(n)
			left := n.Capacity
			for k := range rapid.IntRange(0, 8).Draw(t, "replicas") {
				o := occupant{needs: resources(t, 8), priority: 10 * rapid.IntRange(0, 4).Draw(t, "priority")}
				if rapid.IntRange(0, 9).Draw(t, "important") == 0 {
					o.priority = 200
				}
				if !fits(o.needs, left) {
					continue
				}
				for r := range left {
					left[r] -= o.needs[r]
				}
				o.uid = run(v, revision(fmt.Sprintf("w%d-%d", i, k), 0, priority(o.priority), with(o.needs)), name, 1)[0]
				on[name] = append(on[name], o)
			}
			free[name] = left
		}
		need := resources(t, 20)
		plan := v.Plan(ask(revision("web", 0, priority(200), with(need)), 1))

		var best *cost
		for name, left := range free {
			for set := range 1 << len(on[name]) {
				room, is, allowed := left, cost{}, true
				for k, o := range on[name] {
					if set&(1<<k) == 0 {
						continue
					}
					for r := range room {
						room[r] += o.needs[r]
					}
					is = cost{max(is.highest, o.priority), is.count + 1, is.sum + o.priority}
					allowed = allowed && o.priority < 200
				}
				if allowed && fits(need, room) && (best == nil || less(is, *best)) {
					best = &is
				}
			}
		}
		if (best != nil) != (len(plan.Placements) == 1) {
			t.Fatalf("the best is %+v and the plan is %+v", best, plan)
		}
		if best == nil {
			return
		}
		var is cost
		for k, p := range plan.Preemptions {
			if k > 0 && p.Priority < plan.Preemptions[k-1].Priority {
				t.Fatalf("the lowest priority is not first in %+v", plan.Preemptions)
			}
			at := slices.IndexFunc(on[p.NodeName], func(o occupant) bool { return o.uid == p.Replica })
			o := on[p.NodeName][at]
			is = cost{max(is.highest, o.priority), is.count + 1, is.sum + o.priority}
		}
		if is != *best {
			t.Fatalf("what goes costs %+v and could cost %+v", is, *best)
		}
	})
}

func keeps(n int) func(*scheduler.Revision) {
	return func(r *scheduler.Revision) { r.MinAvailable = n }
}

// A service that may lose one replica loses the one that helps.
func TestHelpfulVictimIsChosen(t *testing.T) {
	version := func(n int) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) { r.UID = fmt.Sprint("revision-", r.Name, "-", n) }
	}
	v := view(node("a"))
	run(v, revision("svc", 200, priority(200), keeps(1), version(1)), "a", 1)
	large := run(v, revision("svc", 1500, priority(200), keeps(1), version(2)), "a", 1)
	plan := v.Plan(ask(revision("web", 1000, priority(300)), 1))
	if len(plan.Preemptions) != 1 || plan.Preemptions[0].Replica != large[0] {
		t.Errorf("the room is not enough, or not the large one goes: %+v", plan)
	}

	port := func(n int32) func(*scheduler.Revision) {
		return func(r *scheduler.Revision) { r.Needs.Ports = []scheduler.Port{{Number: n, Protocol: "tcp"}} }
	}
	v = view(node("a"))
	run(v, revision("svc", 100, priority(200), keeps(1), version(1), port(81)), "a", 1)
	owner := run(v, revision("svc", 100, priority(200), keeps(1), version(2), port(80)), "a", 1)
	plan = v.Plan(ask(revision("web", 100, priority(300), port(80)), 1))
	if len(plan.Preemptions) != 1 || plan.Preemptions[0].Replica != owner[0] {
		t.Errorf("the port is not free, or not its owner goes: %+v", plan)
	}
}

// A replica that ends for its successor counts like the successor.
func TestReplacedReplicaCountsAsItsSuccessor(t *testing.T) {
	for _, standing := range []scheduler.Standing{scheduler.Replaced, scheduler.Inherited} {
		v := view(node("a"))
		web := revision("web", 1000, priority(200), keeps(1))
		v.ApplyReplicaAs("web-1", web, "uid-a", scheduler.Serving)
		v.ApplyReplicaAs("web-2", web, "uid-a", standing)
		if plan := v.Plan(ask(revision("hi", 1000, priority(300)), 1)); len(plan.Preemptions) != 1 || plan.Preemptions[0].Replica != "web-2" {
			t.Errorf("standing %d: %+v", standing, plan)
		}
	}
}

// No replica is preempted to be near one that is about to end.
func TestLeavingReplicaDoesNotCountForAffinity(t *testing.T) {
	web := revision("web", 1000, priority(500), func(r *scheduler.Revision) {
		r.Preferences.Affinity = []scheduler.Affinity{{Workload: "db", Key: scheduler.KeyNode}}
	})
	db := revision("db", 500, priority(500))
	for _, standing := range []scheduler.Standing{scheduler.Serving, scheduler.Leaving} {
		v := view(node("a"))
		v.ApplyReplicaAs("db-1", db, "uid-a", standing)
		run(v, revision("batch", 1500, priority(0)), "a", 1)
		if plan := v.Plan(ask(web, 1)); (len(plan.Preemptions) == 1) != (standing == scheduler.Serving) {
			t.Errorf("standing %d: %+v", standing, plan)
		}
	}
}

// Help names the services that are in the way, and no others.
func TestHelpNamesOnlyBlockingServices(t *testing.T) {
	v := view(node("a"))
	run(v, revision("tiny", 100, priority(150), keeps(1)), "a", 1)
	huge := revision("huge", 1900, priority(200), keeps(1))
	huge.Namespace = "team"
	run(v, huge, "a", 1)
	help := v.Explain(scheduler.Question{Revision: revision("web", 1900, priority(300))}).Help
	if want := "1 node could be made free but for the minAvailable of huge in namespace team, which keeps 1"; !slices.Contains(help, want) {
		t.Errorf("%q", help)
	}
}
