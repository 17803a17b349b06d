package scheduler_test

import (
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

// victims are the workloads of the replicas that have to go.
func victims(p scheduler.Plan) string {
	var names []string
	for _, one := range p.Preemptions {
		names = append(names, one.Name+"@"+one.NodeName)
	}
	return strings.Join(names, " ")
}

// What is important pushes out what is not: as little and as unimportant as
// possible, and only if that makes room.
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
			revision("web", 1000, priority(600)), 2, "service@a service@a", "a a",
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

// The highest priority that goes is the lowest possible one over all nodes and
// all sets of replicas, and no victim could have stayed. Found by trying all.
func TestVictimsAreTheCheapest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := view()
		type occupant struct {
			uid            string
			cpu            int64
			priority, node int
		}
		var all []occupant
		free := map[int]int64{}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			v.ApplyNode(node(fmt.Sprint(i)))
			free[i] = 2000
			for range rapid.IntRange(0, 6).Draw(t, "replicas") {
				o := occupant{cpu: 100 * rapid.Int64Range(1, 8).Draw(t, "cpu"), priority: 10 * rapid.IntRange(0, 25).Draw(t, "priority"), node: i}
				if o.cpu > free[i] {
					continue
				}
				free[i] -= o.cpu
				r := revision(fmt.Sprint("w", len(all)), o.cpu, priority(o.priority), func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Memory] = 0 })
				o.uid = run(v, r, fmt.Sprint(i), 1)[0]
				all = append(all, o)
			}
		}
		need := 100 * rapid.Int64Range(1, 20).Draw(t, "need")
		plan := v.Plan(ask(revision("web", need, priority(200), func(r *scheduler.Revision) { r.Needs.Resources[scheduler.Memory] = 0 }), 1))

		best := 1 << 20 // the lowest highest priority of any set that makes room
		for set := range 1 << len(all) {
			room, highest := map[int]int64{}, -1
			allowed := true
			for k, o := range all {
				if set&(1<<k) != 0 {
					room[o.node] += o.cpu
					highest = max(highest, o.priority)
					allowed = allowed && o.priority < 200
				}
			}
			for i := range free {
				if allowed && free[i]+room[i] >= need {
					best = min(best, highest)
				}
			}
		}
		if (best < 1<<20) != (len(plan.Placements) == 1) {
			t.Fatalf("the best is %d and the plan is %+v", best, plan)
		}
		if len(plan.Placements) == 0 {
			return
		}
		highest, freed := -1, int64(0)
		var gone []occupant
		for _, p := range plan.Preemptions {
			o := all[slices.IndexFunc(all, func(o occupant) bool { return o.uid == p.Replica })]
			gone = append(gone, o)
			highest, freed = max(highest, o.priority), freed+o.cpu
		}
		if highest != best {
			t.Fatalf("the highest that goes is %d and could be %d", highest, best)
		}
		for _, o := range gone {
			if free[o.node]+freed-o.cpu >= need {
				t.Fatalf("%+v need not go", o)
			}
		}
	})
}
