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

// nodes are those of replicas.
func nodes(rs []rollout.Replica) map[string]bool {
	all := map[string]bool{}
	for _, r := range rs {
		all[r.Node] = true
	}
	return all
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
	for _, c := range []struct {
		name string
		have []rollout.Replica
		want rollout.DaemonStep
	}{
		{"with a surge one new replica starts beside an old one, on the first node with room", on(replicas("1 old running", "2 old running"), "a", "b"), rollout.DaemonStep{Surge: []string{"a", "b"}, Beside: 1, Replace: []string{"1", "2"}}},
		{"but not while an earlier one is still stopping there", on(replicas("1 old running", "2 new stopping stopped"), "a", "a"), rollout.DaemonStep{}},
		{"which stays until the new one serves", on(replicas("1 old running", "3 new preparing"), "a", "a"), rollout.DaemonStep{}},
		{"and has proven itself", settling(on(replicas("1 old running", "3 new running"), "a", "a"), "3"), rollout.DaemonStep{}},
		{"then it goes, and the next node follows", on(replicas("1 old running", "3 new running", "2 old running"), "a", "a", "b"), rollout.DaemonStep{Stop: []string{"1"}, Surge: []string{"b"}, Beside: 1}},
	} {
		got := rollout.NextOfDaemon(rollout.Daemon{Revision: "new", Update: rollout.Update{Surge: 1}, Takes: nodes(c.have), Keeps: set("a", "b"), Replicas: c.have})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
	for _, c := range []struct {
		name string
		have []rollout.Replica
		want rollout.DaemonStep
	}{
		{"recreate stops all", on(replicas("1 old running", "2 old running"), "a", "b"), rollout.DaemonStep{Stop: []string{"1", "2"}}},
		{"and waits for the last", on(replicas("1 old stopping stopped", "2 old stopped stopped"), "a", "b"), rollout.DaemonStep{}},
		{"and then creates all", on(replicas("1 old stopped stopped", "2 old stopped stopped"), "a", "b"), rollout.DaemonStep{Create: []string{"a", "b"}}},
	} {
		got := rollout.NextOfDaemon(rollout.Daemon{Revision: "new", Update: rollout.Update{Recreate: true}, Takes: set("a", "b"), Keeps: set("a", "b"), Replicas: c.have})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
	gone := rollout.NextOfDaemon(rollout.Daemon{Revision: "new", Deleting: true, Takes: set("a"), Keeps: set("a"), Replicas: on(replicas("1 new running"), "a")})
	if !reflect.DeepEqual(gone, rollout.DaemonStep{Stop: []string{"1"}}) {
		t.Errorf("while it is deleted: %+v", gone)
	}
}

// Nodes come, go and change: there is never more than one replica on a node, or two during an
// update that starts the new one first, and in the end one of the current revision on each
// suitable node.
func TestDaemonsConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rollout.Daemon{Revision: "r0", Takes: map[string]bool{}, Keeps: map[string]bool{}}
		d.Update.Surge = rapid.IntRange(0, 2).Draw(t, "surge")
		made := 0
		act := func(room bool) rollout.DaemonStep {
			serve(d.Replicas)
			step := rollout.NextOfDaemon(d)
			going := step.Stop
			create := step.Create
			if room {
				create = slices.Concat(create, step.Surge[:min(step.Beside, len(step.Surge))])
			}
			if len(step.Replace) > 0 && (!room || len(step.Surge) == 0) {
				going = append(slices.Clone(going), step.Replace[0])
			}
			for i := range d.Replicas {
				if slices.Contains(going, d.Replicas[i].UID) {
					d.Replicas[i].Desired = spec.DesiredStopped
				}
			}
			for _, node := range create {
				made++
				d.Replicas = append(d.Replicas, rollout.Replica{UID: fmt.Sprintf("%05d", made), Revision: d.Revision, Node: node, Phase: spec.PhasePending, Desired: spec.DesiredRunning})
			}
			live := map[string]int{}
			for _, r := range d.Replicas {
				if spec.Live(r.Phase) && (d.Update.Surge == 0 || r.Desired == spec.DesiredRunning) {
					if live[r.Node]++; live[r.Node] > 1+min(d.Update.Surge, 1) {
						t.Fatalf("%d on %s: %+v", live[r.Node], r.Node, d.Replicas)
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
				act(rapid.Bool().Draw(t, "room"))
			}
		}
		for n := 0; !act(rapid.Bool().Draw(t, "room")).Settled; n++ {
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
