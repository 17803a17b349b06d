package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/scheduler/schedulertest"
	"github.com/cloudless/cloudless/test/bench/policies"
)

// What Nomad 2.0 was measured to need with 5,000 nodes.
const (
	nomadPacks   = "Nomad 2.0: 0.262 to 0.345 ms and 7 MB allocated for each placement, by looking at 13 nodes"
	nomadSpreads = "Nomad 2.0: 2 to 24 ms for each placement"
)

// schedulerMeasurements measure the scheduler alone, in this process, and in time of one
// core: 5,000 nodes, five zones, twelve sizes, half full.
var schedulerMeasurements = []measurement{
	{
		name: "plan_100", unit: "ms", measure: measurePlan("plain", 100, nomadPacks), target: under(1),
		what: "100 placements of one workload, every node considered, median", floor: "none",
	},
	{
		name: "plan_1000", unit: "ms", measure: measurePlanCurve, target: under(3),
		what: "1,000 placements of one workload", floor: "none",
	},
	{
		name: "plan_1000_spread", unit: "ms", measure: measurePlan("spread", 1000, nomadSpreads), target: under(6),
		what: "the same with a maximal skew of 1 over zones", floor: "none",
	},
	{
		name: "plan_1000_affinity", unit: "ms", measure: measurePlan("affinity", 1000, nomadSpreads), target: under(6),
		what: "the same with preferred nodes, affinity to a workload and anti-affinity to another", floor: "none",
	},
	{
		name: "decide_p50", unit: "us", measure: measureDecide(0.5), target: under(150),
		what: "one decision about one replica, of workloads with different needs, with the refresh after a node has changed", floor: "none",
	},
	{
		name: "decide_p95", unit: "us", measure: measureDecide(0.95), target: under(400),
		what: "95th percentile of the same", floor: "none",
	},
	{
		name: "preempt_p95", unit: "ms", measure: measurePreempt, target: under(10),
		what: "one decision with preemption over 5,000 full nodes with 100,000 replicas, 95th percentile", floor: "none",
	},
	{
		name: "view_change", unit: "us", measure: measureViewChange, target: noTarget,
		what: "keeping the scheduler's view current: a replica that comes and goes, among 100,000", floor: "none",
	},
	{
		name: "pack_ratio", unit: "ratio", measure: measurePacking, target: atMost(1.05),
		what: "nodes used by 5,000 small workloads against the fractional lower bound, the worst of 20 fleets", floor: "none",
	},
	{
		name: "spread_skew", unit: "replicas", measure: measureSkew, target: atMost(1),
		what: "largest minus smallest zone of 997 replicas on five zones, the worst of 20 fleets", floor: "none",
	},
	{
		name: "affinity_hit", unit: "share", measure: measureHit, target: exactly(1),
		what: "of 1,000 replicas that are on a node they prefer while one has room, the least of 20 fleets", floor: "none",
	},
	{
		name: "policy_cost", unit: "us", measure: measurePolicies, target: under(200),
		what: "20 policies judge one workload when it is written, median of 2,000", floor: "none",
	},
}

func measurePolicies(ctx context.Context, _ *lab) (result, error) {
	cost, err := policies.Cost(ctx)
	return result{value: float64(cost.Nanoseconds()) / 1000}, err
}

const schedulerNodes = 5000

func planned(name string) *scheduler.Revision {
	switch name {
	case "spread":
		return schedulertest.Spreading(name)
	case "affinity":
		return schedulertest.Attracted(name)
	default:
		return schedulertest.Small(name, 250)
	}
}

func halfFull(nodes int) *scheduler.View {
	return schedulertest.New(schedulertest.Options{Seed: 1, Nodes: nodes, Fill: 50})
}

// spent is what plans have allocated for each placement.
type spent struct{ allocations, bytes float64 }

// timePlans plans repeatedly and returns how long each plan took in microseconds, and what
// was allocated. Changes before each plan count.
func timePlans(ctx context.Context, v *scheduler.View, rounds, count int, revision func(round int) *scheduler.Revision, changes ...func(round int)) (sample, spent, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var took sample
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for round := range rounds {
		if ctx.Err() != nil {
			return nil, spent{}, context.Cause(ctx)
		}
		request := scheduler.Request{Asks: []scheduler.Ask{{Revision: revision(round), Count: count}}}
		began := threadTime()
		for _, change := range changes {
			change(round)
		}
		plan := v.Plan(request)
		took = append(took, float64(threadTime()-began)/1e3)
		if len(plan.Placements) != count {
			return nil, spent{}, fmt.Errorf("%d of %d were placed", len(plan.Placements), count)
		}
	}
	runtime.ReadMemStats(&after)
	placed := float64(rounds * count)
	return took, spent{float64(after.Mallocs-before.Mallocs) / placed, float64(after.TotalAlloc-before.TotalAlloc) / placed}, nil
}

// threadTime is the CPU time of this thread, in nanoseconds: other load on the machine does
// not count.
func threadTime() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return t.Nano()
}

func measurePlan(name string, count int, beside string) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, _ *lab) (result, error) {
		revision := planned(name)
		took, spent, err := timePlans(ctx, halfFull(schedulerNodes), 200, count, func(int) *scheduler.Revision { return revision })
		return result{value: took.median() / 1e3, notes: []string{
			took.spread("microseconds"), fmt.Sprintf("%.3f allocations and %.0f bytes for each placement", spent.allocations, spent.bytes), beside,
		}}, err
	}
}

// measurePlanCurve adds the curve over nodes and replicas.
func measurePlanCurve(ctx context.Context, l *lab) (result, error) {
	r, err := measurePlan("plain", 1000, nomadPacks)(ctx, l)
	if err != nil {
		return r, err
	}
	for _, nodes := range []int{1000, 5000, 10_000, 50_000} {
		v := halfFull(nodes)
		var points []string
		for _, count := range []int{1, 10, 100, 1000, 10_000} {
			revision := planned("plain")
			took, _, err := timePlans(ctx, v, 20, count, func(int) *scheduler.Revision { return revision })
			if err != nil {
				return r, err
			}
			points = append(points, fmt.Sprintf("%d in %.3g ms", count, took.median()/1e3))
		}
		r.notes = append(r.notes, fmt.Sprintf("%d nodes: %s", nodes, strings.Join(points, ", ")))
	}
	return r, nil
}

// decide makes decisions about workloads with different needs, each after a node has
// changed its price, so that what depends on all nodes has to be refreshed.
func decide(ctx context.Context, v *scheduler.View, rounds int) (sample, error) {
	changing := schedulertest.Node(0, 0)
	changing.UID, changing.Name = "changing", "changing"
	sizes := [4]int64{100, 250, 500, 1000}
	took, _, err := timePlans(ctx, v, rounds, 1, func(round int) *scheduler.Revision {
		if round%8 == 7 {
			return schedulertest.Spreading(fmt.Sprint("w", round))
		}
		return schedulertest.Small(fmt.Sprint("w", round), sizes[round%len(sizes)])
	}, func(round int) {
		changing.Price = int64(1 + round%2)
		v.ApplyNode(changing)
	})
	return took, err
}

// measureDecide alternates between as many nodes and ten times as many.
func measureDecide(quantile float64) func(context.Context, *lab) (result, error) {
	return func(ctx context.Context, _ *lab) (result, error) {
		few, many := halfFull(schedulerNodes), halfFull(10*schedulerNodes)
		var took, longer sample
		for range 40 {
			some, err := decide(ctx, few, 100)
			if err != nil {
				return result{}, err
			}
			more, err := decide(ctx, many, 10)
			if err != nil {
				return result{}, err
			}
			took, longer = append(took, some...), append(longer, more...)
		}
		return result{value: took.quantile(quantile), notes: []string{
			took.spread("microseconds"),
			fmt.Sprintf("with ten times the nodes %.3g times that", longer.quantile(quantile)/took.quantile(quantile)), nomadPacks,
		}}, nil
	}
}

func measurePreempt(ctx context.Context, _ *lab) (result, error) {
	v := schedulertest.Full(schedulerNodes, 20)
	took, _, err := timePlans(ctx, v, 400, 1, func(round int) *scheduler.Revision {
		r := schedulertest.Small(fmt.Sprint("urgent", round), int64(200+100*(round%8)))
		r.Priority = 500
		return r
	})
	return result{value: took.quantile(0.95) / 1e3, notes: []string{took.spread("microseconds")}}, err
}

func measureViewChange(_ context.Context, _ *lab) (result, error) {
	v := schedulertest.Full(schedulerNodes, 20)
	const rounds = 200_000
	revision := schedulertest.Small("change", 100)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	for i := range rounds {
		v.ApplyReplica("changing", revision, fmt.Sprintf("uid%06d", i%schedulerNodes))
		v.RemoveReplica("changing")
	}
	replicas := threadTime() - began
	began = threadTime()
	for i := range rounds / 10 {
		n := schedulertest.Node(i%schedulerNodes, i%schedulertest.Sizes)
		v.ApplyNode(n)
	}
	nodes := threadTime() - began
	return result{
		value: float64(replicas) / 1e3 / (2 * rounds),
		notes: []string{fmt.Sprintf("a node that changes: %.3g microseconds", float64(nodes)/1e3/(rounds/10))},
	}, nil
}

// fleets is how many seeded fleets the figures of quality are the worst of.
const fleets = 20

// measurePacking packs every shape of fleet equally often.
func measurePacking(_ context.Context, _ *lab) (result, error) {
	var worst float64
	notes := make([]string, 0, len(schedulertest.Shapes)+1)
	for _, shape := range schedulertest.Shapes {
		ours, firstFit, err := packings(shape, fleets/len(schedulertest.Shapes))
		if err != nil {
			return result{}, err
		}
		worst = max(worst, ours)
		notes = append(notes, fmt.Sprintf("%s: %.3f at worst, first-fit-decreasing %.3f", shape.Name, ours, firstFit))
	}
	ours, firstFit, err := packings(schedulertest.Opposite, 1)
	return result{value: worst, notes: append(notes,
		fmt.Sprintf("not counted, because the bound is out of reach: %s: %.3f, first-fit-decreasing %.3f", schedulertest.Opposite.Name, ours, firstFit))}, err
}

// packings are the worst ratios to the bound over some fleets of one shape.
func packings(shape schedulertest.Shape, fleets int) (ours, firstFit float64, err error) {
	for seed := range uint64(fleets) {
		p, err := shape.Pack(seed)
		if err != nil {
			return 0, 0, err
		}
		ours = max(ours, float64(p.Used)/float64(p.Bound))
		firstFit = max(firstFit, float64(p.FirstFit)/float64(p.Bound))
	}
	return ours, firstFit, nil
}

func measureSkew(_ context.Context, _ *lab) (result, error) {
	worst := 0
	for seed := range uint64(fleets) {
		v := schedulertest.New(schedulertest.Options{Seed: seed, Nodes: 500, Fill: 50})
		for _, revision := range []*scheduler.Revision{schedulertest.Small("plain", 250), schedulertest.Spreading("spread")} {
			skew, err := schedulertest.Skew(v, revision, 997)
			if err != nil {
				return result{}, fmt.Errorf("fleet %d: %w", seed, err)
			}
			worst = max(worst, skew)
		}
	}
	return result{value: float64(worst), notes: []string{"all replicas were placed", "Nomad 2.0: 194 to 221"}}, nil
}

func measureHit(_ context.Context, _ *lab) (result, error) {
	const count = 1000
	least := count
	for seed := range uint64(fleets) {
		v := schedulertest.New(schedulertest.Options{Seed: seed, Nodes: 500, Fill: 50})
		hit, err := schedulertest.Hit(v, schedulertest.Preferring("preferring"), "disk", "ssd", count)
		if err != nil {
			return result{}, fmt.Errorf("fleet %d: %w", seed, err)
		}
		least = min(least, hit)
	}
	return result{value: float64(least) / count, notes: []string{"counted by the labels of the nodes; all replicas were placed", "Nomad 2.0: 0.72 to 0.80"}}, nil
}
