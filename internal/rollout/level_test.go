package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

// Scaling down takes from the fullest places: what was level stays level, over zones first
// and over nodes within them. Replicas that do not run go first.
func TestScalingDownStaysLevel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		zones, nodes := rapid.IntRange(1, 4).Draw(t, "zones"), rapid.IntRange(1, 3).Draw(t, "nodes in each")
		each := rapid.IntRange(1, 4).Draw(t, "replicas on each")
		in := rollout.Input{Revision: "new", Policy: "always", Places: func(node string) []string {
			zone, _, _ := strings.Cut(node, "/")
			return []string{zone, node}
		}}
		order := rapid.Permutation(slices.Collect(func(yield func(int) bool) {
			for i := 0; i < zones*nodes*each && yield(i); i++ {
			}
		})).Draw(t, "order")
		for i := range zones * nodes * each {
			in.Replicas = append(in.Replicas, rollout.Replica{
				UID: fmt.Sprintf("%03d", order[i]), Revision: "new", Phase: spec.PhaseRunning, Serves: true, Desired: spec.DesiredRunning,
				Node: fmt.Sprintf("z%d/n%d", i%zones, i/zones%nodes),
			})
		}
		in.Desired = rapid.IntRange(1, len(in.Replicas)).Draw(t, "left")
		stopped := rollout.Next(in).Stop
		if len(stopped) != len(in.Replicas)-in.Desired {
			t.Fatalf("%d of %d go where %d are to be left", len(stopped), len(in.Replicas), in.Desired)
		}
		inZone, onNode := map[string]int{}, map[string]int{}
		for _, r := range in.Replicas {
			left := 1
			if slices.Contains(stopped, r.UID) {
				left = 0
			}
			zone, _, _ := strings.Cut(r.Node, "/")
			inZone[zone] += left
			onNode[r.Node] += left
		}
		skewed(t, inZone)
		for z := range zones {
			of := map[string]int{}
			for node, n := range onNode {
				if strings.HasPrefix(node, fmt.Sprintf("z%d/", z)) {
					of[node] = n
				}
			}
			skewed(t, of)
		}
	})
}

func skewed(t *rapid.T, counts map[string]int) {
	t.Helper()
	least, most := 1<<30, 0
	for _, n := range counts {
		least, most = min(least, n), max(most, n)
	}
	if most-least > 1 {
		t.Fatalf("there are %v", counts)
	}
}

// Replicas that do not run, or are outdated, go first, wherever they are.
func TestLeastUsefulReplicasGoFirst(t *testing.T) {
	in := rollout.Input{Desired: 2, Revision: "new", Policy: "always", Places: func(node string) []string { return []string{node} }}
	for _, one := range []struct{ uid, node, revision, phase string }{
		{"1", "a", "new", spec.PhaseRunning},
		{"2", "a", "new", spec.PhaseRunning},
		{"3", "b", "old", spec.PhaseRunning},
		{"4", "c", "new", spec.PhasePreparing},
	} {
		in.Replicas = append(in.Replicas, rollout.Replica{UID: one.uid, Node: one.node, Revision: one.revision, Phase: one.phase, Desired: spec.DesiredRunning})
	}
	serve(in.Replicas)
	if got := rollout.Next(in).Stop; !slices.Equal(got, []string{"3", "4"}) {
		t.Errorf("%v go", got)
	}
	in.Desired = 1
	if got := rollout.Next(in).Stop; !slices.Equal(got, []string{"2", "3", "4"}) {
		t.Errorf("%v go", got)
	}
}
