package schedulertest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// Packing is how many nodes some workloads need.
type Packing struct {
	// Used by a plan, by first-fit-decreasing, and at least, if workloads could be
	// cut into pieces.
	Used, FirstFit, Bound int
}

// Pack packs workloads that are small against nodes onto an empty fleet of nodes
// that cost the same and are equally reliable.
func Pack(seed uint64) (Packing, error) {
	random := rand.New(rand.NewPCG(seed, 11))
	v := scheduler.NewView(scheduler.Options{})
	var nodes []scheduler.Node
	for i := range 300 {
		n := Node(i, Sizes/2+random.IntN(Sizes/2)) // the larger sizes, among which replicas are small
		n.Capacity[scheduler.Memory] = n.Capacity[scheduler.CPU] * 4 * gib / 1000
		nodes = append(nodes, n)
		v.ApplyNode(n)
	}
	var request scheduler.Request
	var items []scheduler.Resources
	for i := range 5000 {
		w := Small(fmt.Sprint("w", i), 50+random.Int64N(10)*50)
		w.Needs.Resources[scheduler.Memory] = w.Needs.Resources[scheduler.CPU] * (2 + random.Int64N(5)) * gib / 1000
		items = append(items, w.Needs.Resources)
		request.Asks = append(request.Asks, scheduler.Ask{Revision: w, Count: 1})
	}
	plan := v.Plan(request)
	if len(plan.Unplaced) > 0 {
		return Packing{}, fmt.Errorf("seed %d: %d workloads fit nowhere", seed, len(plan.Unplaced))
	}
	used := map[string]bool{}
	for _, p := range plan.Placements {
		used[p.Node] = true
	}
	return Packing{Used: len(used), FirstFit: firstFit(nodes, items), Bound: bound(nodes, items)}, nil
}

var packed = [2]scheduler.Resource{scheduler.CPU, scheduler.Memory}

// bound is how many of the largest nodes hold the sum of each resource.
func bound(nodes []scheduler.Node, items []scheduler.Resources) (most int) {
	for _, r := range packed {
		var sum int64
		for _, item := range items {
			sum += item[r]
		}
		bySize := slices.SortedFunc(slices.Values(nodes), func(a, b scheduler.Node) int { return cmp.Compare(b.Capacity[r], a.Capacity[r]) })
		needed := 0
		for ; sum > 0; needed++ {
			sum -= bySize[needed].Capacity[r]
		}
		most = max(most, needed)
	}
	return most
}

// firstFit puts the largest items first, each onto the first node that has room,
// with the largest nodes first.
func firstFit(nodes []scheduler.Node, items []scheduler.Resources) int {
	size := func(a, b scheduler.Resources) int { return cmp.Compare(b[scheduler.CPU], a[scheduler.CPU]) }
	items = slices.SortedStableFunc(slices.Values(items), size)
	var free []scheduler.Resources
	for _, n := range nodes {
		free = append(free, n.Capacity)
	}
	slices.SortStableFunc(free, size)
	used := map[int]bool{}
	for _, item := range items {
		at := slices.IndexFunc(free, func(f scheduler.Resources) bool {
			return f[scheduler.CPU] >= item[scheduler.CPU] && f[scheduler.Memory] >= item[scheduler.Memory]
		})
		for _, r := range packed {
			free[at][r] -= item[r]
		}
		used[at] = true
	}
	return len(used)
}

// Skew places replicas of one workload and returns by how many those of the zone
// with the most exceed those of the one with the fewest.
func Skew(v *scheduler.View, r *scheduler.Revision, count int) int {
	zones := map[string]int{}
	for _, p := range v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: count}}}).Placements {
		zones[Zone(p.NodeName)]++
	}
	least, most := count, 0
	for zone := range Zones {
		n := zones[fmt.Sprint("zone", zone)]
		least, most = min(least, n), max(most, n)
	}
	return most - least
}

// Zone is that of a node of New.
func Zone(name string) string {
	var i int
	if _, err := fmt.Sscanf(name, "node%d", &i); err != nil {
		return ""
	}
	return fmt.Sprint("zone", i%Zones)
}

// Hit places replicas that prefer a label and returns how many of them are on a
// node that has it.
func Hit(v *scheduler.View, r *scheduler.Revision, count int) (hit int) {
	for _, p := range v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: count}}}).Placements {
		if p.Score.Affinity > 0 {
			hit++
		}
	}
	return hit
}
