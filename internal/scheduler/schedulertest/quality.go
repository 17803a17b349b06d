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
	// Used by a plan, by first-fit-decreasing, and at least, if workloads could be cut into
	// pieces.
	Used, FirstFit, Bound int
}

// Shape is a kind of fleet and of workloads to pack onto it, which are small compared to
// the nodes. All nodes cost the same and are equally reliable.
type Shape struct {
	Name  string
	nodes int
	// node is cores and GiB, item thousandths of a core and MiB.
	node, item func(*rand.Rand) (int64, int64)
}

// Shapes are those in which the bound can be reached, or nearly.
var Shapes = []Shape{
	{"nodes and workloads alike", 300, func(r *rand.Rand) (int64, int64) {
		cores, _ := larger(r)
		return cores, 4 * cores
	}, between(2, 6)},
	{"nodes of 2 and 4 GiB a core, workloads of 2 to 6", 300, larger, between(2, 6)},
	{"nodes of 2 and 4 GiB a core, workloads heavy in one or the other", 300, larger, func(r *rand.Rand) (int64, int64) {
		cpu := 50 + r.Int64N(10)*50
		if r.IntN(2) == 0 {
			return cpu, cpu / 2
		}
		return cpu / 2, cpu * 4
	}},
	{"nodes of 8 GiB a core, workloads of 1 to 3", 300, func(r *rand.Rand) (int64, int64) {
		cores, _ := larger(r)
		return cores, 8 * cores
	}, between(1, 3)},
	{"nodes of 2 to 8 cores, workloads of 2 to 4 GiB a core", 2000, func(r *rand.Rand) (int64, int64) {
		size := sizes[r.IntN(Sizes/2)]
		return size[0], size[1]
	}, func(r *rand.Rand) (int64, int64) {
		cpu := 50 + r.Int64N(5)*50
		return cpu, cpu * (2 + r.Int64N(3))
	}},
}

// Opposite has nodes of two kinds, each with much of what the other lacks. No scheduler can
// come near the bound: the rest of one resource has no use.
var Opposite = Shape{"nodes of 1 and 16 GiB a core, workloads of 1 to 5", 300, func(r *rand.Rand) (int64, int64) {
	if r.IntN(2) == 0 {
		return 64, 64
	}
	return 16, 256
}, between(1, 5)}

// larger are node sizes for which workloads of half a core are small.
func larger(r *rand.Rand) (cores, memory int64) {
	size := sizes[Sizes/2+r.IntN(Sizes/2)]
	return size[0], size[1]
}

// between are workloads of up to half a core with so many GiB for each.
func between(least, most int64) func(*rand.Rand) (int64, int64) {
	return func(r *rand.Rand) (int64, int64) {
		cpu := 50 + r.Int64N(10)*50
		return cpu, cpu * (least + r.Int64N(most-least+1))
	}
}

// Pack packs 5,000 workloads of one replica each onto an empty fleet.
func (s Shape) Pack(seed uint64) (Packing, error) {
	random := rand.New(rand.NewPCG(seed, 11))
	v := scheduler.NewView(scheduler.Options{})
	var nodes []scheduler.Node
	for i := range s.nodes {
		n := Node(i, 0)
		cores, memory := s.node(random)
		n.Capacity[scheduler.CPU], n.Capacity[scheduler.Memory] = cores*1000, memory*gib
		nodes = append(nodes, n)
		v.ApplyNode(n)
	}
	var request scheduler.Request
	var items []scheduler.Resources
	for i := range 5000 {
		w := Small(fmt.Sprint("w", i), 0)
		cpu, memory := s.item(random)
		w.Needs.Resources = scheduler.Resources{scheduler.CPU: cpu, scheduler.Memory: memory * gib / 1000}
		items = append(items, w.Needs.Resources)
		request.Asks = append(request.Asks, scheduler.Ask{Revision: w, Count: 1})
	}
	plan := v.Plan(request)
	if len(plan.Unplaced) > 0 {
		return Packing{}, fmt.Errorf("%s, seed %d: %d workloads fit nowhere", s.Name, seed, len(plan.Unplaced))
	}
	used := map[string]bool{}
	for _, p := range plan.Placements {
		used[p.Node] = true
	}
	return Packing{Used: len(used), FirstFit: firstFit(nodes, items), Bound: bound(nodes, items)}, nil
}

var packed = [2]scheduler.Resource{scheduler.CPU, scheduler.Memory}

// bound is the least number of nodes if workloads could be cut into pieces: for any weights
// of CPU and memory, the largest nodes by that weighting must hold the weighted sum. The
// weighting that needs the most nodes is the bound.
func bound(nodes []scheduler.Node, items []scheduler.Resources) (most int) {
	var sum scheduler.Resources
	for _, item := range items {
		for _, r := range packed {
			sum[r] += item[r]
		}
	}
	const steps = 50
	for step := range steps + 1 {
		share := float64(step) / steps
		var worth []float64
		for _, n := range nodes {
			worth = append(worth, share*float64(n.Capacity[scheduler.CPU])/float64(sum[scheduler.CPU])+
				(1-share)*float64(n.Capacity[scheduler.Memory])/float64(sum[scheduler.Memory]))
		}
		slices.SortFunc(worth, func(a, b float64) int { return cmp.Compare(b, a) })
		needed := 0
		for held := 0.0; held < 1-1e-9 && needed < len(worth); needed++ {
			held += worth[needed]
		}
		most = max(most, needed)
	}
	return most
}

// firstFit puts the largest items first, each onto the first node that has room, with the
// largest nodes first.
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

// placeAll places all replicas of one workload or fails.
func placeAll(v *scheduler.View, r *scheduler.Revision, count int) ([]scheduler.Placement, error) {
	placements := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: r, Count: count}}}).Placements
	if len(placements) != count {
		return nil, fmt.Errorf("%d of %d replicas of %s were placed", len(placements), count, r.Name)
	}
	return placements, nil
}

// Skew places replicas of one workload and returns the difference between the zones with
// the most and the fewest.
func Skew(v *scheduler.View, r *scheduler.Revision, count int) (int, error) {
	placements, err := placeAll(v, r, count)
	if err != nil {
		return 0, err
	}
	zones := map[string]int{}
	for _, p := range placements {
		n, err := nodeNamed(p.NodeName)
		if err != nil {
			return 0, err
		}
		zones[n.Zone]++
	}
	least, most := count, 0
	for zone := range Zones {
		n := zones[fmt.Sprint("zone", zone)]
		least, most = min(least, n), max(most, n)
	}
	return most - least, nil
}

// nodeNamed is a node of New as it was made; its size and what follows from it may differ.
func nodeNamed(name string) (scheduler.Node, error) {
	var i int
	if _, err := fmt.Sscanf(name, "node%d", &i); err != nil {
		return scheduler.Node{}, fmt.Errorf("node %q is not of this fleet: %w", name, err)
	}
	return Node(i, 0), nil
}

// Hit places replicas that prefer nodes by a label, and returns how many of them are on a
// node that has it. It ignores the scheduler's own opinion.
func Hit(v *scheduler.View, r *scheduler.Revision, key, value string, count int) (hit int, err error) {
	placements, err := placeAll(v, r, count)
	if err != nil {
		return 0, err
	}
	for _, p := range placements {
		n, err := nodeNamed(p.NodeName)
		if err != nil {
			return 0, err
		}
		if n.Labels[key] == value {
			hit++
		}
	}
	return hit, nil
}
