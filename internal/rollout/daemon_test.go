package rollout_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

// on puts replicas onto nodes, one after the other.
func on(rs []rollout.Replica, nodes ...string) []rollout.Replica {
	for i := range rs {
		rs[i].Node = nodes[i]
	}
	return rs
}

func TestNextOfDaemon(t *testing.T) {
	set := func(nodes ...string) map[string]bool {
		all := map[string]bool{}
		for _, n := range nodes {
			all[n] = true
		}
		return all
	}
	for _, c := range []struct {
		name         string
		takes, keeps map[string]bool
		have         []rollout.Replica
		want         rollout.DaemonStep
	}{
		{"every node gets one", set("a", "b"), set("a", "b"), nil, rollout.DaemonStep{Create: []string{"a", "b"}}},
		{"one that joins gets one", set("a", "b"), set("a", "b"), on(replicas("1 new running"), "a"), rollout.DaemonStep{Create: []string{"b"}}},
		{"one on each is enough", set("a", "b"), set("a", "b"), on(replicas("1 new running", "2 new running"), "a", "b"), rollout.DaemonStep{Settled: true}},
		{"what comes up is waited for", set("a"), set("a"), on(replicas("1 new preparing"), "a"), rollout.DaemonStep{}},
		{"where there is no room it waits", set("a"), set("a"), on(replicas("1 new pending"), "a"), rollout.DaemonStep{}},
		{"a node that does not suit any more loses it", set("a"), set("a"), on(replicas("1 new running", "2 new running"), "a", "b"), rollout.DaemonStep{Stop: []string{"2"}}},
		{"a cordoned node keeps it", set("a"), set("a", "b"), on(replicas("1 new running", "2 new running"), "a", "b"), rollout.DaemonStep{Settled: true}},
		{"but gets no new one", set("a"), set("a", "b"), on(replicas("1 new running"), "a"), rollout.DaemonStep{Settled: true}},
		{"nor one that waits for it", set(), set("a"), on(replicas("1 new pending"), "a"), rollout.DaemonStep{Stop: []string{"1"}}},
		{"one on an offline node is not covered", set("b"), set("a", "b"), on(replicas("1 new running away", "2 new running"), "a", "b"), rollout.DaemonStep{}},
		{"and given up when the node does not suit", set("b"), set("b"), on(replicas("1 new running away", "2 new running"), "a", "b"), rollout.DaemonStep{Lose: []string{"1"}}},
		{"of two on a node the newer goes", set("a"), set("a"), on(replicas("1 new running", "2 new running"), "a", "a"), rollout.DaemonStep{Stop: []string{"2"}}},
		{"a stopping replica keeps its place", set("a"), set("a"), on(replicas("1 new stopping stopped"), "a"), rollout.DaemonStep{}},
		{"and then is followed", set("a"), set("a"), on(replicas("1 new stopped stopped"), "a"), rollout.DaemonStep{Create: []string{"a"}}},
		{"outdated ones are replaced one node after the other", set("a", "b"), set("a", "b"), on(replicas("1 old running", "2 old running"), "a", "b"), rollout.DaemonStep{Replace: []string{"1", "2"}}},
		{"the next one waits", set("a", "b"), set("a", "b"), on(replicas("2 old running", "3 new preparing"), "b", "a"), rollout.DaemonStep{}},
		{"until the successor runs", set("a", "b"), set("a", "b"), on(replicas("2 old running", "3 new running"), "b", "a"), rollout.DaemonStep{Replace: []string{"2"}}},
		{"those that do not run are replaced at once", set("a", "b"), set("a", "b"), on(replicas("1 old backoff", "2 old pending"), "a", "b"), rollout.DaemonStep{Stop: []string{"1", "2"}}},
		{"an offline node does not hold up the others", set("b"), set("a", "b"), on(replicas("1 old running away", "2 old running"), "a", "b"), rollout.DaemonStep{Replace: []string{"2"}}},
	} {
		got := rollout.NextOfDaemon(rollout.Daemon{Revision: "new", Takes: c.takes, Keeps: c.keeps, Replicas: c.have})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
	gone := rollout.NextOfDaemon(rollout.Daemon{Revision: "new", Deleting: true, Takes: set("a"), Keeps: set("a"), Replicas: on(replicas("1 new running"), "a")})
	if !reflect.DeepEqual(gone, rollout.DaemonStep{Stop: []string{"1"}}) {
		t.Errorf("while it is deleted: %+v", gone)
	}
}

// Nodes come, go and change: there is never more than one replica on a node, and in the end
// one of the current revision on each suitable node.
func TestDaemonsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rollout.Daemon{Revision: "r0", Takes: map[string]bool{}, Keeps: map[string]bool{}}
		made := 0
		act := func() rollout.DaemonStep {
			serve(d.Replicas)
			step := rollout.NextOfDaemon(d)
			going := step.Stop
			if len(step.Replace) > 0 {
				going = append(slices.Clone(going), step.Replace[0])
			}
			for i := range d.Replicas {
				if slices.Contains(going, d.Replicas[i].UID) {
					d.Replicas[i].Desired = spec.DesiredStopped
				}
			}
			for _, node := range step.Create {
				made++
				d.Replicas = append(d.Replicas, rollout.Replica{UID: fmt.Sprintf("%05d", made), Revision: d.Revision, Node: node, Phase: spec.PhasePending, Desired: spec.DesiredRunning})
			}
			live := map[string]int{}
			for _, r := range d.Replicas {
				if spec.Live(r.Phase) {
					if live[r.Node]++; live[r.Node] > 1 {
						t.Fatalf("two on %s: %+v", r.Node, d.Replicas)
					}
				}
			}
			return step
		}
		advance := func() {
			for i := range d.Replicas {
				r := &d.Replicas[i]
				switch {
				case spec.Ended(r.Phase):
				case r.Desired == spec.DesiredStopped:
					r.Phase = spec.PhaseStopped
				case r.Phase == spec.PhasePending:
					r.Phase = spec.PhasePreparing
				default:
					r.Phase = spec.PhaseRunning
				}
			}
		}
		for i := range rapid.IntRange(1, 40).Draw(t, "steps") {
			node := fmt.Sprint("n", rapid.IntRange(0, 4).Draw(t, "node"))
			switch rapid.IntRange(0, 5).Draw(t, "change") {
			case 0:
				d.Takes[node], d.Keeps[node] = true, true
			case 1:
				d.Takes[node] = false
			case 2:
				d.Takes[node], d.Keeps[node] = false, false
			case 3:
				d.Revision = fmt.Sprint("r", i+1)
			case 4:
				advance()
			default:
				act()
			}
		}
		for n := 0; !act().Settled; n++ {
			if n > 200 {
				t.Fatalf("does not come to rest: %+v", d)
			}
			advance()
		}
		has := map[string]bool{}
		for _, r := range d.Replicas {
			if spec.Live(r.Phase) {
				has[r.Node] = true
				if r.Revision != d.Revision || r.Phase != spec.PhaseRunning || !d.Keeps[r.Node] {
					t.Fatalf("settled with %+v", r)
				}
			}
		}
		for node, takes := range d.Takes {
			if takes && !has[node] {
				t.Fatalf("%s has none: %+v", node, d)
			}
		}
	})
}
