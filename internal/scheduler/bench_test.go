package scheduler_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/scheduler/schedulertest"
)

func halfFull(nodes int) *scheduler.View {
	return schedulertest.New(schedulertest.Options{Seed: 1, Nodes: nodes, Fill: 50})
}

func benchAsks() []*scheduler.Revision {
	return []*scheduler.Revision{schedulertest.Small("plain", 250), schedulertest.Spreading("spread"), schedulertest.Attracted("affinity")}
}

func BenchmarkPlan(b *testing.B) {
	v := halfFull(5000)
	for _, revision := range benchAsks() {
		for _, count := range []int{1, 100, 1000} {
			b.Run(fmt.Sprint(revision.Name, "/", count), func(b *testing.B) {
				b.ReportAllocs()
				began := cpuTime()
				for b.Loop() {
					if plan := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: revision, Count: count}}}); len(plan.Placements) != count {
						b.Fatalf("%d placed", len(plan.Placements))
					}
				}
				b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime is the CPU time that this process has used: wall time says little on a busy
// machine.
func cpuTime() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// BenchmarkPreempt preempts on 5,000 nodes with 100,000 replicas, and tries to where that
// does not help.
func BenchmarkPreempt(b *testing.B) {
	v := schedulertest.Full(5000, 20)
	spreading := schedulertest.Spreading("important")
	for name, test := range map[string]struct {
		r             *scheduler.Revision
		count, placed int
	}{
		"one":        {schedulertest.Small("important", 3000), 1, 1},
		"too large":  {schedulertest.Small("important", 1_000_000), 1, 0},
		"a hundred":  {schedulertest.Small("important", 3000), 100, 100},
		"with rules": {spreading, 100, 100},
	} {
		test.r.Priority = 500
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			began := cpuTime()
			for b.Loop() {
				if plan := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: test.r, Count: test.count}}}); len(plan.Placements) != test.placed {
					b.Fatalf("%d placed", len(plan.Placements))
				}
			}
			b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkAvoided places a workload that many others keep away from.
func BenchmarkAvoided(b *testing.B) {
	v := halfFull(5000)
	for i := range 300 {
		shy := schedulertest.Small(fmt.Sprint("shy", i), 10)
		shy.Preferences.Affinity = []scheduler.Affinity{{Workload: "loud", Key: scheduler.KeyNode, Anti: true}}
		for k, p := range v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: shy, Count: 5}}}).Placements {
			v.ApplyReplica(fmt.Sprint(shy.Name, "-", k), shy, p.Node)
		}
	}
	loud := schedulertest.Small("loud", 250)
	b.ReportAllocs()
	began := cpuTime()
	for b.Loop() {
		if plan := v.Plan(scheduler.Request{Asks: []scheduler.Ask{{Revision: loud, Count: 1}}}); len(plan.Placements) != 1 {
			b.Fatal("it has no place")
		}
	}
	b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
}
