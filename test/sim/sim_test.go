package sim

import (
	"flag"
	"fmt"
	"slices"
	"testing"
)

var (
	hours = flag.Float64("sim.hours", 0, "how many hours of clusters to simulate; 1000 if 0, or 100 with -short")
	first = flag.Uint64("sim.seed", 1, "seed of the first cluster; the next ones follow")
	told  = flag.Bool("sim.trace", false, "tell every line of the stories")
)

// teller prints a story where that was asked for.
func teller() func(string) {
	if !*told {
		return nil
	}
	return func(line string) { fmt.Println(line) }
}

// Clusters live through everything that kinds in acts.go lists, and what the
// architecture promises holds all the time.
func TestClusters(t *testing.T) {
	enough := *hours
	switch {
	case enough > 0:
	case testing.Short():
		enough = 100
	default:
		enough = 1000
	}
	total, entries, clusters, acts, plans := 0.0, uint64(0), 0, 0, 0
	for seed := *first; total < enough; seed++ {
		r := Run(Story{Seed: seed, Tell: teller()})
		if r.Failure != nil {
			t.Fatal(describe(r))
		}
		total += r.Hours
		entries += r.Entries
		acts += r.Acts
		plans += r.Plans
		clusters++
	}
	t.Logf("%.0f cluster-hours in %d clusters: %d acts, %d entries of logs, %d plans carried out", total, clusters, acts, entries, plans)
}

// describe tells how a story ended badly, with as few acts as it takes.
func describe(r Result) string {
	left := shrink(r)
	short := Run(Story{Seed: r.Seed, Keep: only(left)})
	return fmt.Sprintf("seed %d: %v\nthe last lines:\n%s\nwith the acts %v of %d alone: %v\n%s\ntell it again with: go test ./test/sim -run TestClusters -sim.seed=%d -sim.hours=1 -sim.trace",
		r.Seed, r.Failure, r.Tail, left, r.Acts, short.Failure, short.Tail, r.Seed)
}

// shrink leaves out acts for as long as the same invariant is broken: first
// large parts of them, then single ones.
func shrink(r Result) []int {
	left := make([]int, r.Acts)
	for i := range left {
		left[i] = i
	}
	for size := (len(left) + 1) / 2; size > 0; size /= 2 {
		for at := 0; at < len(left); {
			without := slices.Concat(left[:at], left[min(at+size, len(left)):])
			again := Run(Story{Seed: r.Seed, Keep: only(without)})
			if again.Failure != nil && again.Failure.Invariant == r.Failure.Invariant {
				left = without
			} else {
				at += size
			}
		}
	}
	return left
}

func only(acts []int) func(int) bool {
	return func(act int) bool { return slices.Contains(acts, act) }
}

// A seed is the same story each time it is told, so that a failure can be looked at.
func TestSeedIsOneStory(t *testing.T) {
	for seed := *first; seed < *first+5; seed++ {
		a, b := Run(Story{Seed: seed}), Run(Story{Seed: seed})
		if a.Hash != b.Hash || a.Entries != b.Entries {
			t.Errorf("seed %d was told in two ways: %x with %d entries, and %x with %d", seed, a.Hash, a.Entries, b.Hash, b.Entries)
		}
	}
	if Run(Story{Seed: *first}).Hash == Run(Story{Seed: *first + 1}).Hash {
		t.Error("two seeds tell the same story")
	}
}

// Whatever is made wrong on purpose is found, as what it is.
func TestFlawsAreFound(t *testing.T) {
	for flaw, invariants := range map[Flaw][]string{
		Hasty:     {"a new leader gives everybody time", "a leader change takes nobody offline"},
		Deaf:      {"nobody is offline who is heard of"},
		Lenient:   {"who is not heard of is offline in time", "in the end everything is as desired"},
		Forgetful: {"nothing is stopped that is wanted"},
		Blind:     {"in the end everything is as desired"},
		Crowding:  {"replicas go only where they may", "no node is promised more than it has", "a port is promised once"},
		Greedy:    {"retention never deletes what is needed"},
		Amnesic:   {"work that is done is not done again", "retention never deletes what is needed"},
		Timeless:  {"in the end everything is as desired"},
		Repeating: {"a time of a schedule has one job", "progress"},
		Wilful:    {"the same log gives the same state to the byte"},
		Generous:  {"nothing is placed beyond a quota"},
		Heedless:  {"a score goes on from the one before", "who goes away is trusted less"},
		Forgiving: {"who goes away is trusted less"},
		Outdated:  {"in the end everything is as desired", "who is not heard of is offline in time"},
		Lying:     {"what the plan showed is what was done"},
		Ruthless:  {"only what is more important pushes others out", "nobody is pushed out in vain"},
	} {
		t.Run(string(flaw), func(t *testing.T) {
			for seed := uint64(1); seed <= 20; seed++ {
				r := Run(Story{Seed: seed, Flaw: flaw})
				if r.Failure == nil {
					continue
				}
				if !slices.Contains(invariants, r.Failure.Invariant) {
					t.Errorf("seed %d: found as %v, want %q", seed, r.Failure, invariants)
				}
				return
			}
			t.Error("twenty clusters lived with it, and nothing was found")
		})
	}
}
