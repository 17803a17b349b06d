package scheduler_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// uidsOf are the uids of the replicas of a model that stay.
func (m *model) uidsOf() (uids []string) {
	for _, o := range m.replicas {
		if !o.leaving {
			uids = append(uids, o.uid)
		}
	}
	return uids
}

func TestRebalanceTakesTheLargestGain(t *testing.T) {
	web, other := revision("web", 100), revision("other", 200)
	v := view(node("a"), node("b"), node("c"))
	uids := slices.Concat(run(v, web, "a", 4), run(v, web, "b", 2))
	run(v, other, "a", 1)
	move, found := v.Rebalance(scheduler.Rebalancing{Replicas: uids})
	if !found || move.Own.NodeName != "a" || move.Placement.NodeName != "c" || move.Why() != "c has 0 other replicas of the workload, a 3" {
		t.Errorf("it moves %v from %s to %s: %s", found, move.Own.NodeName, move.Placement.NodeName, move.Why())
	}

	// What is being moved already counts as gone.
	move, found = v.Rebalance(scheduler.Rebalancing{Replicas: uids[3:], Leaving: uids[:3]})
	if !found || move.Own.NodeName != "b" {
		t.Errorf("if three of four leave a, it moves %v from %s", found, move.Own.NodeName)
	}
	// The best node is waited for.
	if move, found = v.Rebalance(scheduler.Rebalancing{Replicas: uids, May: func(node string) bool { return node != "uid-c" }}); found {
		t.Errorf("without node c, it moves from %s to %s", move.Own.NodeName, move.Placement.NodeName)
	}
}

func TestRebalanceComparesScores(t *testing.T) {
	web := revision("web", 400)
	web.Preferences.Strategy = scheduler.Even
	v := view(node("a"), node("b"))
	uids := run(v, web, "a", 1)
	run(v, revision("other", 1500), "a", 1)
	move, found := v.Rebalance(scheduler.Rebalancing{Replicas: uids, MinGain: 100_000})
	if !found || move.Gain != (scheduler.Gain{Criterion: scheduler.ByScore, By: 148_200}) {
		t.Fatalf("the gain is %v", move.Gain)
	}
	want := "the score of b is 0.9604, that of a 0.8122, a gain of 0.148, most of all by utilization, 0.802 to 0.061; 0 % of the CPU of b is promised, 95 % of that of a"
	if got := move.Why(); got != want {
		t.Errorf("it says\n%s, want\n%s", got, want)
	}
	if _, found = v.Rebalance(scheduler.Rebalancing{Replicas: uids, MinGain: 148_201}); found {
		t.Error("it moves for less than the gain that is asked for")
	}
}

// The new replica starts beside the old one, on free room.
func TestRebalanceNeedsRoomForBoth(t *testing.T) {
	web := revision("web", 400, priority(500))
	uidsIn := func(v *scheduler.View) []string { return run(v, web, "a", 2) }
	for what, prepare := range map[string]func(v *scheduler.View){
		"the other node is full": func(v *scheduler.View) { run(v, revision("low", 1900, priority(0)), "b", 1) },
		"the quota is used up": func(v *scheduler.View) {
			v.SetQuota("default", scheduler.Quota{Replicas: 2})
		},
		"the own node refuses it today": func(v *scheduler.View) {
			v.ApplyNode(node("a", func(n *scheduler.Node) { n.Unschedulable = "is cordoned" }))
		},
	} {
		v := view(node("a"), node("b"))
		uids := uidsIn(v)
		if _, found := v.Rebalance(scheduler.Rebalancing{Replicas: uids}); !found {
			t.Fatalf("%s: it would not move anyway", what)
		}
		prepare(v)
		if move, found := v.Rebalance(scheduler.Rebalancing{Replicas: uids}); found {
			t.Errorf("%s: it moves to %s", what, move.Placement.NodeName)
		}
	}
}

// A move gains what it says, leaves the view as it was, needs nobody else to go, and is not undone.
func TestMoveIsNotUndone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, _ := anyCluster(t)
		v := m.view(m.inOrder())
		least := rapid.Int32Range(0, 100_000).Draw(t, "gain")
		asked := scheduler.Rebalancing{Replicas: m.uidsOf(), MinGain: least}
		move, found := v.Rebalance(asked)
		if again, _ := v.Rebalance(asked); !reflect.DeepEqual(move, again) {
			t.Fatalf("asked again, it is\n%+v, not\n%+v", again, move)
		}
		if !found {
			return
		}
		at := slices.IndexFunc(m.replicas, func(o running) bool { return o.uid == move.Replica })
		to := slices.IndexFunc(m.nodes, func(n scheduler.Node) bool { return n.UID == move.Placement.Node })
		if from := m.replicas[at].node; from == to || m.nodes[from].UID != move.Own.Node || move.Placement.Preempts {
			t.Fatalf("%+v of %+v", move, m.replicas[at])
		}
		if !m.takes(to, m.replicas[at].r) {
			t.Fatalf("node %s does not take a replica of %s beside the others", move.Placement.NodeName, m.replicas[at].r.Name)
		}
		if !move.Gain.Reaches(least) {
			t.Fatalf("the gain is %+v, less than %d", move.Gain, least)
		}
		m.replicas[at].node = to
		after, found := m.view(m.inOrder()).Rebalance(scheduler.Rebalancing{Replicas: []string{move.Replica}})
		if found {
			t.Fatalf("after\n%+v\nit moves on:\n%+v", move, after)
		}
	})
}

// Without rules by which replicas chase each other, moves come to an end.
func TestMovesComeToAnEnd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := scheduler.NewView(scheduler.Options{})
		nodes := rapid.IntRange(2, 6).Draw(t, "nodes")
		for i := range nodes {
			v.ApplyNode(node(fmt.Sprint(i), inZone(rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone")), cores(rapid.Int64Range(4, 16).Draw(t, "cores"))))
		}
		strategy := rapid.SampledFrom([]scheduler.Strategy{scheduler.Pack, scheduler.BestFit, scheduler.Even}).Draw(t, "strategy")
		where, of := map[string]string{}, map[string]*scheduler.Revision{}
		for i := range rapid.IntRange(1, 5).Draw(t, "workloads") {
			r := revision(fmt.Sprint("w", i), 50*rapid.Int64Range(1, 8).Draw(t, "size"))
			r.Preferences.Strategy = strategy
			for range rapid.IntRange(1, 5).Draw(t, "replicas") {
				on := fmt.Sprint(rapid.IntRange(0, nodes-1).Draw(t, "on"))
				uid := run(v, r, on, 1)[0]
				where[uid], of[uid] = "uid-"+on, r
			}
		}
		var all, trace []string
		for uid := range where {
			all = append(all, uid)
		}
		slices.Sort(all)
		for range 20 * len(all) {
			move, found := v.Rebalance(scheduler.Rebalancing{Replicas: all, MinGain: 5000})
			if !found {
				return
			}
			trace = append(trace, fmt.Sprintf("%s %s to %s: %s", move.Replica, move.Own.NodeName, move.Placement.NodeName, move.Why()))
			v.ApplyReplica(move.Replica, of[move.Replica], move.Placement.Node)
		}
		t.Fatalf("the moves never end:\n%s", strings.Join(trace, "\n"))
	})
}
