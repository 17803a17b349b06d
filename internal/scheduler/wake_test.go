package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// With affinity rules, a workload may be helped by a node on which it could never run.
func TestNodeCanHelpOnOtherNodes(t *testing.T) {
	spreading := revision("web", 500, func(r *scheduler.Revision) {
		r.Preferences.Spread = []scheduler.Spread{{Key: scheduler.KeyZone, MaxSkew: 1}}
	})
	small := func(n *scheduler.Node) { n.Capacity[scheduler.CPU] = 100 }
	for what, change := range map[string]func(v *scheduler.View){
		"cordoned": func(v *scheduler.View) {
			v.ApplyNode(node("b", inZone("z2"), small, func(n *scheduler.Node) { n.Unschedulable = "is cordoned" }))
		},
		"tainted": func(v *scheduler.View) {
			v.ApplyNode(node("b", inZone("z2"), small, func(n *scheduler.Node) { n.Taints = []scheduler.Taint{{Key: "spot", Effect: scheduler.NoSchedule}} }))
		},
		"moved":   func(v *scheduler.View) { v.ApplyNode(node("b", inZone("z1"), small)) },
		"removed": func(v *scheduler.View) { v.RemoveNode("uid-b") },
	} {
		v := view(node("a", inZone("z1")), node("b", inZone("z2"), small))
		run(v, spreading, "a", 1)
		v.Wait(spreading)
		v.ApplyNode(node("b", inZone("z2"), small))
		if woken := v.Wake(); len(woken) > 0 {
			t.Errorf("%s: a node that stays as it is wakes %q", what, woken)
		}
		change(v)
		if got := strings.Join(v.Wake(), " "); got != "workload-web" {
			t.Errorf("a node in another zone is %s, which wakes %q", what, got)
		}
	}
}

// A replica that kept others out of its zone kept them out of all nodes there.
func TestEndOfARepellingReplicaHelpsElsewhere(t *testing.T) {
	guard := revision("guard", 1500, func(r *scheduler.Revision) {
		r.Preferences.Affinity = []scheduler.Affinity{{Workload: "web", Key: scheduler.KeyZone, Anti: true}}
	})
	for what, change := range map[string]func(v *scheduler.View, guard string){
		"ends":              func(v *scheduler.View, guard string) { v.RemoveReplica(guard) },
		"is lost":           func(v *scheduler.View, _ string) { v.RemoveNode("uid-a") },
		"is elsewhere":      func(v *scheduler.View, _ string) { v.ApplyNode(node("a", inZone("z2"))) },
		"moves to the next": func(v *scheduler.View, of string) { v.ApplyReplica(of, guard, "uid-c") },
	} {
		v := view(node("a", inZone("z1")), node("b", inZone("z1")), node("c", inZone("z3")))
		guards := run(v, guard, "a", 1)
		run(v, revision("filler", 500), "a", 1)
		run(v, revision("whole", 2000), "c", 1)
		web := revision("web", 1600)
		v.Wait(web)
		if woken := v.Wake(); len(woken) > 0 {
			t.Errorf("woken are %q", woken)
		}
		change(v, guards[0])
		if got := strings.Join(v.Wake(), " "); got != "workload-web" {
			t.Errorf("one that keeps others away %s, which wakes %q", what, got)
		}
	}
}

// A workload wakes whenever it fits, and a woken workload has a place.
func TestPlaceableWorkloadsAreWoken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		v := m.view(m.inOrder())
		v.SetOptions(scheduler.Options{Preempt: rapid.Bool().Draw(t, "preempts")})
		fits := func(r *scheduler.Revision) bool { return len(v.Plan(ask(r, 1)).Placements) == 1 }
		var waits []*scheduler.Revision
		for _, name := range workloadNames {
			if r := revisions[name]; !fits(r) {
				v.Wait(r)
				waits = append(waits, r)
			}
		}
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			switch rapid.IntRange(0, 4).Draw(t, "change") {
			case 0: // comes, or is different
				v.ApplyNode(anyNode(t, rapid.IntRange(0, 7).Draw(t, "node")))
			case 1:
				if len(m.nodes) > 0 {
					v.RemoveNode(rapid.SampledFrom(m.nodes).Draw(t, "gone").UID)
				}
			case 2: // comes, or moves
				if len(m.nodes) > 0 {
					at := rapid.SampledFrom(m.nodes).Draw(t, "at").UID
					v.ApplyReplica(fmt.Sprint("replica", rapid.IntRange(0, 9).Draw(t, "replica")), revisions[rapid.SampledFrom(workloadNames).Draw(t, "of")], at)
				}
			case 3:
				if len(m.replicas) > 0 {
					v.RemoveReplica(rapid.SampledFrom(m.replicas).Draw(t, "ended").uid)
				}
			case 4:
				v.SetQuota("default", scheduler.Quota{Replicas: rapid.Int64Range(0, 12).Draw(t, "most")})
			}
		}
		woken := v.Wake()
		for _, r := range waits {
			if slices.Contains(woken, r.Workload) != fits(r) {
				t.Fatalf("%+v fits: %t, woken are %q", r, fits(r), woken)
			}
		}
	})
}

// A workload that is blocked by a service's minAvailable wakes when the service has one
// more replica.
func TestOneMoreReplicaOfAServiceWakesPreemptors(t *testing.T) {
	v := view(node("a"), node("b", func(n *scheduler.Node) { n.Unschedulable = "is cordoned" }))
	svc := revision("svc", 2000, priority(200), keeps(1))
	v.ApplyReplicaAs("svc-1", svc, "uid-a", scheduler.Starting)
	v.Wait(revision("web", 2000, priority(300)))
	v.ApplyReplicaAs("svc-2", svc, "uid-b", scheduler.Starting)
	if got := strings.Join(v.Wake(), " "); got != "workload-web" {
		t.Errorf("woken are %q", got)
	}
}

// A workload with affinity to another wakes when the other is back.
func TestReturnedReplicaWakesFollowers(t *testing.T) {
	v := view(node("a"))
	db := revision("db", 500)
	v.ApplyReplicaAs("db-1", db, "uid-a", scheduler.Leaving) // as long as its node is offline
	web := revision("web", 500, func(r *scheduler.Revision) {
		r.Preferences.Affinity = []scheduler.Affinity{{Workload: "db", Key: scheduler.KeyNode}}
	})
	if plan := v.Plan(ask(web, 1)); len(plan.Placements) > 0 {
		t.Fatalf("%+v", plan)
	}
	v.Wait(web)
	v.ApplyReplicaAs("db-1", db, "uid-a", scheduler.Serving)
	if got := strings.Join(v.Wake(), " "); got != "workload-web" {
		t.Errorf("woken are %q", got)
	}
}

// A reservation whose victims have ended already wakes at once.
func TestReservationWakesAtOnce(t *testing.T) {
	for _, before := range []scheduler.Standing{scheduler.Inherited, scheduler.Leaving} {
		v := view(node("a"))
		web := revision("web", 500)
		v.ApplyReplicaAs("web-1", web, "uid-a", before)
		v.WaitPatiently(web)
		v.Wake()
		v.WaitPatiently(web)
		v.ApplyReplicaAs("web-1", web, "uid-a", scheduler.Reserved)
		if got := strings.Join(v.Wake(), " "); got != "workload-web" {
			t.Errorf("after standing %d woken are %q", before, got)
		}
	}
}
