package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// begun carries out the beginning of a plan: victims leave, and the preemptors hold the
// room. It returns their uids, by ask.
func begun(v *scheduler.View, r scheduler.Request, plan scheduler.Plan) [][]string {
	held := make([][]string, len(r.Asks))
	for _, p := range plan.Preemptions {
		v.Leave(p.Replica)
	}
	for i, p := range plan.Placements {
		uid, as := fmt.Sprint("new", i), scheduler.Starting
		if p.Preempts {
			held[p.Ask], as = append(held[p.Ask], uid), scheduler.Reserved
		}
		v.ApplyReplicaAs(uid, r.Asks[p.Ask].Revision, p.Node, as)
	}
	return held
}

// holds asks only for those that hold room.
func holds(r scheduler.Request, held [][]string) scheduler.Request {
	var again scheduler.Request
	for i, one := range r.Asks {
		again.Asks = append(again.Asks, scheduler.Ask{Revision: one.Revision, Held: held[i]})
	}
	return again
}

// Reserved room goes to its owner, unless a more important replica comes, or there is a
// free place elsewhere.
func TestHeldRoom(t *testing.T) {
	v := view(node("a"), node("b"))
	low := run(v, revision("low", 1000, priority(10)), "a", 2)
	full := run(v, revision("full", 2000, priority(900)), "b", 1)
	web := revision("web", 1500, priority(300))
	first := v.Plan(ask(web, 1))
	if victims(first) != "low@a low@a" || !first.Placements[0].Preempts {
		t.Fatalf("the plan is %+v", first)
	}
	held := begun(v, ask(web, 1), first)
	again := holds(ask(web, 1), held)

	if plan := v.Plan(again); len(plan.Held) != 1 || plan.Held[0].NodeName != "a" || len(plan.Preemptions)+len(plan.Placements)+len(plan.Unplaced) != 0 {
		t.Errorf("while they leave the plan is %+v", plan)
	}
	v.RemoveReplica(low[0])
	for _, other := range []*scheduler.Revision{revision("same", 600, priority(300)), revision("lower", 600, priority(0))} {
		if plan := v.Plan(ask(other, 1)); len(plan.Placements) != 0 {
			t.Errorf("%s takes room that is being made for web: %+v", other.Name, plan)
		}
	}
	higher := ask(revision("higher", 1500, priority(400)), 1)
	higher.Asks = append(higher.Asks, again.Asks...)
	if plan := v.Plan(higher); places(plan) != "a" || victims(plan) != "web@a" || len(plan.Unplaced) != 1 || len(plan.Held) != 0 {
		t.Errorf("one that is more important gets %+v", plan)
	}
	v.RemoveReplica(low[1])
	if plan := v.Plan(again); places(plan) != "a" || plan.Placements[0].Preempts || plan.Placements[0].Held != held[0][0] {
		t.Errorf("when they have left the plan is %+v", plan)
	}

	low = run(v, revision("low", 2000, priority(10)), "a", 1) // it is back, and the node too small
	v.Leave(low[0])
	v.RemoveReplica(full[0])
	if plan := v.Plan(again); places(plan) != "b" || plan.Placements[0].Held != held[0][0] || len(plan.Preemptions) != 0 {
		t.Errorf("with a free node the plan is %+v", plan)
	}
	run(v, revision("full", 2000, priority(900)), "b", 1)
	v.ApplyNode(node("a", func(n *scheduler.Node) { n.Unschedulable = "is offline" }))
	if plan := v.Plan(again); len(plan.Held) != 0 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Count != 1 {
		t.Errorf("when the node will not do any more the plan is %+v", plan)
	}
}

// Inherited room is for its owner only. The owner goes to the best place: there, or elsewhere.
func TestInheritedRoom(t *testing.T) {
	v := view(node("a"), node("b"))
	web := revision("web", 1500, priority(0))
	v.ApplyReplicaAs("heir", web, "uid-a", scheduler.Inherited)
	full := run(v, revision("full", 2000, priority(900)), "b", 1)
	again := scheduler.Request{Asks: []scheduler.Ask{{Revision: web, Held: []string{"heir"}}}}

	if plan := v.Plan(ask(revision("other", 1000, priority(100)), 1)); len(plan.Placements) != 0 {
		t.Errorf("another takes the room: %+v", plan)
	}
	if plan := v.Plan(again); places(plan) != "a" || plan.Placements[0].Held != "heir" || plan.Placements[0].Preempts {
		t.Errorf("the plan is %+v", plan)
	}
	boss := ask(revision("boss", 1500, priority(300)), 1)
	boss.Asks = append(again.Asks, boss.Asks...)
	if plan := v.Plan(boss); places(plan) != "a" || victims(plan) != "web@a" || len(plan.Unplaced) != 1 {
		t.Errorf("one that is more important gets %+v", plan)
	}
	v.RemoveReplica(full[0])
	v.ApplyNode(node("a", func(n *scheduler.Node) { n.Unschedulable = "is cordoned" }))
	if plan := v.Plan(again); places(plan) != "b" || plan.Placements[0].Held != "heir" {
		t.Errorf("with a better place the plan is %+v", plan)
	}
	v.ApplyNode(node("b", func(n *scheduler.Node) { n.Unschedulable = "is offline" }))
	if plan := v.Plan(again); len(plan.Held) != 0 || len(plan.Unplaced) != 1 || plan.Unplaced[0].Count != 1 {
		t.Errorf("without any the plan is %+v", plan)
	}
}

// Only running replicas are available, and leaving ones are not.
func TestLeavingReplicasAreNotAvailable(t *testing.T) {
	service := revision("service", 1000, priority(200), func(r *scheduler.Revision) { r.MinAvailable = 1 })
	for what, standings := range map[string][2]scheduler.Standing{
		"one leaves": {scheduler.Serving, scheduler.Leaving}, "one only starts": {scheduler.Serving, scheduler.Starting},
	} {
		v := view(node("a"), node("b"))
		run(v, revision("full", 1000, priority(900)), "a", 1)
		run(v, revision("full", 1000, priority(900)), "b", 1)
		v.ApplyReplicaAs("s0", service, "uid-a", standings[0])
		v.ApplyReplicaAs("s1", service, "uid-b", standings[1])
		plan := v.Plan(ask(revision("web", 1000, priority(300)), 2))
		for _, p := range plan.Preemptions {
			if p.Replica == "s0" {
				t.Errorf("%s: the only one that runs goes", what)
			}
		}
		if len(plan.Unplaced) != 1 || plan.Unplaced[0].Count != 1 {
			t.Errorf("%s: %+v", what, plan)
		}
	}
}

// A replica that waits for reserved room wakes when something on that node ends or a place
// is free elsewhere, not because others could be preempted.
func TestWakeOfReservations(t *testing.T) {
	v := view(node("a"))
	low := run(v, revision("low", 1000, priority(10)), "a", 2)
	web := revision("web", 1500, priority(300))
	plan := v.Plan(ask(web, 1))
	begun(v, ask(web, 1), plan)
	v.WaitPatiently(web)
	v.Wake()
	for _, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"a node that could be emptied", func() {
			v.ApplyNode(node("b"))
			run(v, revision("low", 2000, priority(10)), "b", 1)
		}, ""},
		{"the end of one that leaves", func() { v.RemoveReplica(low[0]) }, "workload-web"},
		{"a free node", func() { v.WaitPatiently(web); v.ApplyNode(node("c")) }, "workload-web"},
		{"the end of its node", func() { v.WaitPatiently(web); v.RemoveNode("uid-a") }, "workload-web"},
	} {
		step.do()
		if got := strings.Join(v.Wake(), " "); got != step.want {
			t.Errorf("%s wakes %q, want %q", step.what, got, step.want)
		}
	}
}

// Once a preemption has begun, nothing more is preempted for the same replicas, whatever
// their rules are. When the victims have ended, each preemptor has its place.
func TestPreemptionCompletes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		m.replicas = slices.DeleteFunc(m.replicas, func(o running) bool { return o.leaving })
		for _, one := range revisions { // affinity rules open and close on the way
			one.Preferences.Affinity, one.Preferences.Spread = nil, nil
		}
		r := anyRequest(t, revisions)
		v := m.view(m.inOrder())
		plan := v.Plan(r)
		held := begun(v, r, plan)
		waiting := 0
		for _, one := range held {
			waiting += len(one)
		}
		again := v.Plan(holds(r, held))
		if len(again.Held) != waiting || len(again.Preemptions) != 0 || len(again.Unplaced) != 0 {
			t.Fatalf("%d wait, and the second plan is\n%+v\nafter\n%+v", waiting, again, plan)
		}
		for _, p := range plan.Preemptions {
			v.RemoveReplica(p.Replica)
		}
		last := v.Plan(holds(r, held))
		if len(last.Placements) != waiting || slices.ContainsFunc(last.Placements, func(p scheduler.Placement) bool { return p.Preempts }) {
			t.Fatalf("%d wait, and in the end the plan is\n%+v\nafter\n%+v", waiting, last, plan)
		}
	})
}
