// Package schedulertest makes fleets for tests and measurements of package scheduler. The
// same seed makes the same fleet.
package schedulertest

import (
	"fmt"
	"math/rand/v2"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// The number of zones and node sizes of a fleet.
const (
	Zones = 5
	Sizes = 12
)

const gib = 1 << 30

// sizes are cores and GiB of memory.
var sizes = [Sizes][2]int64{
	{2, 4}, {2, 8}, {4, 8}, {4, 16}, {8, 16}, {8, 32}, {16, 32}, {16, 64}, {32, 64}, {32, 128}, {64, 128}, {64, 256},
}

// Options say what a fleet looks like.
type Options struct {
	Seed  uint64
	Nodes int
	// Fill is how much of each node's CPU is in use, in percent.
	Fill int64
	// Equal is whether all nodes cost the same and are equally reliable.
	Equal bool
	// ReplicasPerNode, if not 0, is the number of replicas on each node, whatever its size;
	// together they use the fill.
	ReplicasPerNode int
	// Priority is that of the replicas.
	Priority int
}

// New makes a view of a fleet.
func New(o Options) *scheduler.View {
	random := rand.New(rand.NewPCG(o.Seed, 7))
	v := scheduler.NewView(scheduler.Options{Preempt: true})
	workloads := make([]*scheduler.Revision, 100)
	for i := range workloads {
		workloads[i] = Small(fmt.Sprint("filler", i), int64(100+50*(i%5)))
		workloads[i].Priority = o.Priority
	}
	replicas := 0
	for i := range o.Nodes {
		n := Node(i, random.IntN(Sizes))
		if !o.Equal {
			n.Reliability = 700 + random.Int32N(300)
			n.Price = n.Capacity[scheduler.CPU] / 100
		}
		v.ApplyNode(n)
		goal, used := n.Capacity[scheduler.CPU]*o.Fill/100, int64(0)
		if o.ReplicasPerNode > 0 {
			even := Small(fmt.Sprintf("even%d", i%100), goal/int64(o.ReplicasPerNode))
			even.UID += fmt.Sprint("-", n.Capacity[scheduler.CPU])
			even.Priority = o.Priority
			for range o.ReplicasPerNode {
				replicas++
				v.ApplyReplica(fmt.Sprint("replica", replicas), even, n.UID)
			}
			continue
		}
		for used < goal {
			w := workloads[random.IntN(len(workloads))]
			used += w.Needs.Resources[scheduler.CPU]
			replicas++
			v.ApplyReplica(fmt.Sprint("replica", replicas), w, n.UID)
		}
	}
	return v
}

// Node is an empty node of a size, in the zone of its number.
func Node(i, size int) scheduler.Node {
	return scheduler.Node{
		UID: fmt.Sprintf("uid%06d", i), Name: fmt.Sprintf("node%06d", i),
		Region: "region", Zone: fmt.Sprint("zone", i%Zones),
		Labels:  map[string]string{"size": fmt.Sprint(size), "rack": fmt.Sprint("rack", i%40), "disk": []string{"ssd", "hdd"}[i%2]},
		Drivers: []string{"container"}, Platform: "linux/amd64", Reliability: 1000,
		Capacity: scheduler.Resources{
			scheduler.CPU: sizes[size][0] * 1000, scheduler.Memory: sizes[size][1] * gib,
			scheduler.Disk: 100 * gib, scheduler.Bandwidth: 1e9,
		},
	}
}

// Small is a revision that is small compared to nodes: some CPU and two GiB of memory for
// each core.
func Small(name string, millis int64) *scheduler.Revision {
	return &scheduler.Revision{
		UID: "revision-" + name, Workload: "workload-" + name, Name: name, Namespace: "default", Priority: 100,
		Needs: scheduler.Needs{
			Driver:    "container",
			Resources: scheduler.Resources{scheduler.CPU: millis, scheduler.Memory: millis * gib / 500},
		},
	}
}

// Spreading is a small revision whose replicas must be level over zones.
func Spreading(name string) *scheduler.Revision {
	r := Small(name, 250)
	r.Preferences.Spread = []scheduler.Spread{{Key: scheduler.KeyZone, MaxSkew: 1}}
	return r
}

// Preferring is a small revision that prefers every second node.
func Preferring(name string) *scheduler.Revision {
	r := Small(name, 250)
	rule, err := scheduler.NewRule("disk", scheduler.OpIn, "ssd")
	if err != nil {
		panic(err) // the rule is written above
	}
	r.Preferences.Prefer = []scheduler.PreferredRule{{Rule: rule, Weight: 50}}
	return r
}

// Attracted is a small revision that prefers nodes, wants to be in the zone of one workload
// and must not be on a node with another.
func Attracted(name string) *scheduler.Revision {
	r := Preferring(name)
	r.Preferences.Affinity = []scheduler.Affinity{
		{Workload: "filler1", Key: scheduler.KeyZone, Weight: 10},
		{Workload: "filler2", Key: scheduler.KeyNode, Anti: true},
	}
	return r
}

// Full makes a fleet for measuring preemption: every node is full of equally many replicas
// of a low priority.
func Full(nodes, replicasPerNode int) *scheduler.View {
	return New(Options{Seed: 1, Nodes: nodes, Fill: 100, ReplicasPerNode: replicasPerNode, Priority: 50})
}
