package scheduler_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/scheduler/schedulertest"
)

// Replicas that are small compared to nodes need at most 5 % more nodes than the lower
// bound, also if nodes and replicas have different proportions.
func TestPackingIsNearTheBound(t *testing.T) {
	for seed, shape := range schedulertest.Shapes { // test/bench takes 20
		p, err := shape.Pack(uint64(seed))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %+v", shape.Name, p)
		if float64(p.Used) > 1.05*float64(p.Bound) && p.Used > p.Bound+1 {
			t.Errorf("%s: %d nodes are used, the bound is %d and first-fit-decreasing needs %d", shape.Name, p.Used, p.Bound, p.FirstFit)
		}
	}
}

// Zones are level whenever capacity allows, and preferred nodes are used while one has
// room, whatever the score says.
func TestSpreadAndAffinityAreExact(t *testing.T) {
	for seed := range uint64(5) {
		v := schedulertest.New(schedulertest.Options{Seed: seed, Nodes: 500, Fill: 50})
		for _, r := range benchAsks()[:2] {
			if skew, err := schedulertest.Skew(v, r, 997); err != nil || skew > 1 {
				t.Errorf("seed %d: the skew of %s is %d, %v", seed, r.Name, skew, err)
			}
		}
		if hit, err := schedulertest.Hit(v, schedulertest.Preferring("preferring"), "disk", "ssd", 1000); err != nil || hit != 1000 {
			t.Errorf("seed %d: %d of 1000 are on a preferred node, %v", seed, hit, err)
		}
		if skew, err := schedulertest.Skew(v, schedulertest.Small("crowd", 64_000), 997); err == nil {
			t.Errorf("seed %d: of what does not fit the skew is %d", seed, skew)
		}
	}
}

// A single replica goes where the first of several does: the nodes that are skipped for it
// are not better.
func TestSingleReplicaGoesWhereTheFirstOfSeveralGoes(t *testing.T) {
	for seed := range uint64(5) {
		v := schedulertest.New(schedulertest.Options{Seed: seed, Nodes: 500, Fill: 50})
		for number, weights := range []scheduler.Weighing{{}, {Utilization: new(int32(1000))}, {Cost: new(int32(0)), Reliability: new(int32(0))}} {
			for _, r := range append(benchAsks(), schedulertest.Small("large", 3000), schedulertest.Preferring("preferring")) {
				r.Preferences.Weights = weights
				for i := range 10 {
					one := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: 1}}}).Placements
					two := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: 2}}}).Placements
					if len(one) != 1 || len(two) != 2 || one[0] != two[0] {
						t.Fatalf("seed %d: alone a replica of %s goes to %+v, with another one to %+v", seed, r.Name, one, two)
					}
					v.ApplyReplica(fmt.Sprintf("%s-%d-%d", r.Name, number, i), r, one[0].Node)
				}
			}
		}
	}
}

// As many replicas are placed as possible, with a maximal skew over zones. The test tries
// all ways to put them on a few nodes.
func TestAsManyAsPossible(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := view()
		var room []int
		var zones []int
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			room = append(room, rapid.IntRange(0, 3).Draw(t, "room"))
			zones = append(zones, rapid.IntRange(0, 1).Draw(t, "zone"))
			v.ApplyNode(node(fmt.Sprint(i), inZone(fmt.Sprint("z", zones[i])), func(n *scheduler.Node) {
				n.Capacity[scheduler.CPU] = int64(room[i])*500 + 100
			}))
		}
		skew := rapid.IntRange(0, 2).Draw(t, "skew")
		r := revision("web", 500, func(r *scheduler.Revision) {
			r.Needs.Resources[scheduler.Memory] = 0
			r.Preferences.Spread = []scheduler.Spread{{Key: scheduler.KeyZone, MaxSkew: skew}}
		})
		most := 0
		var try func(node int, perZone [2]int)
		try = func(node int, perZone [2]int) {
			if node < len(room) {
				for n := range room[node] + 1 {
					next := perZone
					next[zones[node]] += n
					try(node+1, next)
				}
				return
			}
			both := false
			for _, z := range zones {
				both = both || z != zones[0]
			}
			difference := perZone[0] - perZone[1]
			if skew == 0 || both && max(difference, -difference) <= skew {
				most = max(most, perZone[0]+perZone[1])
			} else if !both { // a single zone is level with itself
				most = max(most, perZone[0]+perZone[1])
			}
		}
		try(0, [2]int{})
		if got := len(v.Plan(ask(r, 99)).Placements); got != most {
			t.Fatalf("%d are placed, %d could be, in rooms %v of zones %v with a skew of %d", got, most, room, zones, skew)
		}
	})
}

// A few workloads on a few equal nodes use at most one node more than the optimum.
func TestPackingSmallCases(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := view()
		for i := range 6 {
			v.ApplyNode(node(fmt.Sprint(i)))
		}
		var request scheduler.Request
		var sizes []int64
		for i := range rapid.IntRange(1, 6).Draw(t, "workloads") {
			sizes = append(sizes, 100*rapid.Int64Range(1, 20).Draw(t, "size"))
			request.Asks = append(request.Asks, scheduler.Ask{Revision: revision(fmt.Sprint(i), sizes[i]), Count: 1})
		}
		best := len(sizes)
		var try func(item int, bins []int64)
		try = func(item int, bins []int64) {
			if item == len(sizes) {
				best = min(best, len(bins))
				return
			}
			for b := range bins {
				if bins[b]+sizes[item] <= 2000 {
					bins[b] += sizes[item]
					try(item+1, bins)
					bins[b] -= sizes[item]
				}
			}
			try(item+1, append(bins, sizes[item]))
		}
		try(0, nil)
		used := map[string]bool{}
		for _, p := range v.Plan(request).Placements {
			used[p.Node] = true
		}
		if len(used) > best+1 {
			t.Fatalf("%d nodes are used for %v, %d would do", len(used), sizes, best)
		}
	})
}
