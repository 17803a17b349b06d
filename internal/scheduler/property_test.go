package scheduler_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
)

// replay carries a plan out on the model step by step and checks every guarantee.
func (m *model) replay(t *rapid.T, r scheduler.Request, plan scheduler.Plan) {
	next, unplaced := 0, plan.Unplaced
	for _, i := range placingOrder(r) {
		ask := r.Asks[i]
		placed := 0
		for ; next < len(plan.Placements) && plan.Placements[next].Ask == i; next++ {
			m.carryOut(t, plan, next, ask.Revision)
			placed++
		}
		left := max(0, ask.Count) - placed
		if left == 0 {
			continue
		}
		if len(unplaced) == 0 || unplaced[0].Ask != i || unplaced[0].Count != left {
			t.Fatalf("%d of %s are left over, but %+v", left, ask.Revision.Name, unplaced)
		}
		m.leftOver(t, unplaced[0], ask.Revision)
		unplaced = unplaced[1:]
	}
	if next != len(plan.Placements) || len(unplaced) != 0 {
		t.Fatalf("the request does not contain %+v and %+v", plan.Placements[next:], unplaced)
	}
}

// carryOut removes the victims and places one replica.
func (m *model) carryOut(t *rapid.T, plan scheduler.Plan, at int, r *scheduler.Revision) {
	p := plan.Placements[at]
	for _, victim := range plan.Preemptions {
		if victim.Placement != at {
			continue
		}
		k := slices.IndexFunc(m.replicas, func(o running) bool { return o.uid == victim.Replica })
		gone := m.replicas[k].r
		if m.replicas[k].leaving {
			t.Fatalf("%+v goes already", victim)
		}
		m.replicas[k].leaving = true
		left := 0
		for _, o := range m.replicas {
			if o.r.Workload == gone.Workload && !o.leaving && !o.planned {
				left++
			}
		}
		for _, o := range m.replicas {
			if o.r.Priority >= r.Priority && o.r.Workload != r.Workload && m.follows(o, m.replicas[k]) {
				t.Fatalf("%s of priority %d pushes out %s, which %s of %d must be near to", r.Name, r.Priority, gone.Name, o.r.Name, o.r.Priority)
			}
		}
		sameClass := gone.Priority > 100 && gone.Priority <= 500 && r.Priority <= 500 || gone.Priority > 500 || r.Priority <= 100
		if r.Priority <= 100 || gone.Priority >= r.Priority || left < gone.MinAvailable && sameClass {
			t.Fatalf("%s of priority %d pushes out %s of %d, and %d of them stay", r.Name, r.Priority, gone.Name, gone.Priority, left)
		}
	}
	node := m.index(p.Node)
	// A replica that waits for victims needs the room and the node only after they have
	// ended, but all other rules hold already now.
	then := m
	if p.Preempts {
		then = m.later()
	}
	keeps := m.rules(node, r) && m.level(node, r) && m.near(node, r) && m.apart(node, r, otherKeys) && m.quota(r)
	if !keeps || !then.fits(node, r) || !then.apart(node, r, nodeKey) || p.Preempts && m.takes(node, r) {
		t.Fatalf("%+v for %+v goes to %+v with %+v", p, r, m.nodes[node], m.replicas)
	}
	m.replicas = append(m.replicas, running{uid: fmt.Sprint("planned", len(m.replicas), "-", at), r: r, node: node, planned: true})
}

// leftOver checks that no node would take one more, and that each says why.
func (m *model) leftOver(t *rapid.T, u scheduler.Unplaced, r *scheduler.Revision) {
	if len(u.Nodes) != len(m.nodes) {
		t.Fatalf("%d of %d nodes are explained", len(u.Nodes), len(m.nodes))
	}
	if (u.Quota == "") != m.quota(r) {
		t.Fatalf("the quota is %q", u.Quota)
	}
	for _, reason := range u.Nodes {
		i := m.index(reason.Node)
		alone := m.rules(i, r) && m.fits(i, r) && m.topology(i, r)
		if m.takes(i, r) || (reason.String() == "") != alone {
			t.Fatalf("%+v is unplaced because of %q and %q, but %+v would take it: %v", r, reason, u.Quota, m.nodes[i], alone)
		}
	}
	grouped := 0
	for _, g := range u.Groups {
		grouped += g.Count
	}
	refused := len(slices.DeleteFunc(slices.Clone(u.Nodes), func(n scheduler.NodeReason) bool { return len(n.Refusals) == 0 }))
	if grouped != refused {
		t.Fatalf("%d nodes are in groups and %d refuse", grouped, refused)
	}
}

// The guarantees of the package: no node over its capacity, no rule broken, nothing
// unplaced that a node would take, the same plan in whatever order the view was built, and
// an unchanged view afterwards.
func TestPlanKeepsItsGuarantees(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		r := anyRequest(t, revisions)
		v := m.view(m.inOrder())
		plan := v.Plan(r)
		if again := v.Plan(r); !reflect.DeepEqual(plan, again) {
			t.Fatalf("the second plan is\n%+v\nafter\n%+v", again, plan)
		}
		other := m.view(rapid.Permutation(m.inOrder()).Draw(t, "order"))
		other.ApplyNode(node("extra", inZone("z")))
		run(other, revisions["w1"], "extra", 2)
		for _, o := range m.replicas { // everything moves away and comes back
			if other.ApplyReplica(o.uid, o.r, "uid-extra"); rapid.Bool().Draw(t, "removed") {
				other.RemoveReplica(o.uid)
			}
		}
		for _, k := range rapid.Permutation(slices.Sorted(maps.Keys(m.byUID()))).Draw(t, "back") {
			o := m.byUID()[k]
			other.ApplyReplicaAs(o.uid, o.r, m.nodes[o.node].UID, o.standing())
		}
		other.RemoveNode("uid-extra")
		if same := other.Plan(r); !reflect.DeepEqual(plan, same) {
			t.Fatalf("another way to the same view gives\n%+v\nnot\n%+v", same, plan)
		}
		m.clone().replay(t, r, plan)
	})
}

func (m *model) byUID() map[string]running {
	all := map[string]running{}
	for _, o := range m.replicas {
		all[o.uid] = o
	}
	return all
}

// A plan that is carried out leaves the cluster as it predicted: the same amounts are
// promised, nothing fits that did not, and the next request is answered as by a new view.
func TestPlanPredictsItsResult(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		r := anyRequest(t, revisions)
		v := m.view(m.inOrder())
		plan := v.Plan(r)
		for _, gone := range plan.Preemptions {
			v.RemoveReplica(gone.Replica)
		}
		for i, p := range plan.Placements {
			v.ApplyReplica(fmt.Sprint("new", i), r.Asks[p.Ask].Revision, p.Node)
		}
		after := m.clone()
		after.replay(t, r, plan)
		for _, gone := range plan.Preemptions {
			after.replicas = slices.DeleteFunc(after.replicas, func(o running) bool { return o.uid == gone.Replica })
		}
		for i, n := range m.nodes {
			free, all := after.free(i), room(&n)
			for k, promised := range v.Requested(n.UID) {
				if promised != all[k]-free[k] {
					t.Fatalf("%d of %v is promised on %s, not %d", promised, scheduler.Resource(k), n.Name, all[k]-free[k])
				}
			}
		}
		if len(r.Asks) == 1 && len(plan.Unplaced) == 1 && plan.Unplaced[0].Quota == "" && len(plan.Preemptions) == 0 {
			if more := v.Plan(ask(r.Asks[0].Revision, 1)); len(more.Placements) > 0 {
				t.Fatalf("%s was left over, but now goes to %+v", r.Asks[0].Revision.Name, more.Placements)
			}
		}
		after.rename(plan)
		next := anyRequest(t, revisions)
		fresh := after.view(after.inOrder())
		if got, want := v.Plan(next), fresh.Plan(next); !reflect.DeepEqual(got, want) {
			t.Fatalf("the next plan is\n%+v\nand by a fresh view\n%+v", got, want)
		}
		for _, one := range revisions {
			q := scheduler.Question{Revision: one}
			if got, want := v.Explain(q), fresh.Explain(q); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s is explained by\n%+v\nand by a fresh view\n%+v", one.Name, got, want)
			}
		}
	})
}

// rename gives the replicas of a replayed plan, which are the last ones, the uids under
// which it was carried out.
func (m *model) rename(plan scheduler.Plan) {
	first := len(m.replicas) - len(plan.Placements)
	for i := range plan.Placements {
		m.replicas[first+i].uid = fmt.Sprint("new", i)
	}
}

// Preemption takes nothing from earlier asks: the first ask, in placing order, that
// preemption affects has fewer unplaced replicas with it. Later asks may have more: its
// replicas may be in their way.
func TestPreemptionNeverHurtsHigherPriorities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		r := anyRequest(t, revisions)
		v := m.view(m.inOrder())
		with := v.Plan(r)
		v.SetOptions(scheduler.Options{})
		without := v.Plan(r)
		missing := func(p scheduler.Plan) map[int]int {
			counts := map[int]int{}
			for _, u := range p.Unplaced {
				counts[u.Ask] = u.Count
			}
			return counts
		}
		a, b := missing(with), missing(without)
		for _, i := range placingOrder(r) {
			if a[i] > b[i] {
				t.Fatalf("%d of %s are unplaced, and %d without preemption", a[i], r.Asks[i].Revision.Name, b[i])
			}
			if a[i] < b[i] {
				break
			}
		}
		for _, p := range with.Preemptions {
			by := r.Asks[with.Placements[p.Placement].Ask].Revision
			if p.Priority >= by.Priority {
				t.Fatalf("%+v goes for %+v", p, by)
			}
		}
	})
}

// A replica that needs more is refused by all nodes that refused it before.
func TestReasonsAreMonotonic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, revisions := anyCluster(t)
		v := m.view(m.inOrder())
		v.SetOptions(scheduler.Options{})
		v.SetQuota("default", scheduler.Quota{Replicas: scheduler.NoneAtAll}) // so that every node is explained as it is now
		modest := revisions["w1"]
		greedy := *modest
		greedy.UID = "greedy"
		for k := range greedy.Needs.Resources {
			greedy.Needs.Resources[k] += rapid.Int64Range(0, 1).Draw(t, "more") << 30
		}
		greedy.Needs.Ports = append(slices.Clone(greedy.Needs.Ports), scheduler.Port{Number: 2, Protocol: "tcp"})
		before, after := v.Plan(ask(modest, 1)).Unplaced[0], v.Plan(ask(&greedy, 1)).Unplaced[0]
		for i := range before.Nodes {
			for _, refusal := range before.Nodes[i].Refusals {
				still := slices.ContainsFunc(after.Nodes[i].Refusals, func(o scheduler.Refusal) bool { return o.Filter == refusal.Filter })
				if !still {
					t.Fatalf("%s refuses by %s, and not if more is needed: %+v", before.Nodes[i].NodeName, refusal.Filter, after.Nodes[i])
				}
			}
		}
	})
}
