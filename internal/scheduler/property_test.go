package scheduler_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// model is a cluster that knows the rules but no classes, heaps, scores or
// journals. It is slow and plain.
type model struct {
	nodes    []scheduler.Node
	replicas []running
	quotas   map[string]scheduler.Quota
}

type running struct {
	uid  string
	r    *scheduler.Revision
	node int // index
	// leaving was told to end, planned is not there yet.
	leaving, planned bool
}

// view builds the real thing from the model, in some order. Nodes that are away
// have not always been.
func (m *model) view(order []int) *scheduler.View {
	v := scheduler.NewView(scheduler.Options{Preempt: true})
	for _, i := range order {
		n := m.nodes[i]
		n.Away = n.Away != (i%2 == 0)
		v.ApplyNode(n)
	}
	for _, r := range m.replicas {
		v.ApplyReplicaAs(r.uid, r.r, m.nodes[r.node].UID, r.standing())
	}
	for _, i := range order {
		v.ApplyNode(m.nodes[i])
	}
	for name, q := range m.quotas {
		v.SetQuota(name, q)
	}
	return v
}

// inOrder are all nodes as they come.
func (m *model) inOrder() []int {
	order := make([]int, len(m.nodes))
	for i := range order {
		order[i] = i
	}
	return order
}

func (o running) standing() scheduler.Standing {
	if o.leaving {
		return scheduler.Leaving
	}
	return scheduler.Serving
}

// later is the model when those have ended that leave.
func (m *model) later() *model {
	after := m.clone()
	after.replicas = slices.DeleteFunc(after.replicas, func(o running) bool { return o.leaving })
	return after
}

func (m *model) free(node int) scheduler.Resources {
	free := m.nodes[node].Capacity
	for _, o := range m.replicas {
		if o.node == node {
			for k := range free {
				free[k] -= o.r.Needs.Resources[k]
			}
		}
	}
	return free
}

func (m *model) fits(node int, r *scheduler.Revision) bool {
	free := m.free(node)
	for k, need := range r.Needs.Resources {
		if need > 0 && need > free[k] {
			return false
		}
	}
	for _, o := range m.replicas {
		for _, p := range o.r.Needs.Ports {
			shared := o.r.Needs.SharePorts && r.Needs.SharePorts && o.r.Workload == r.Workload
			if o.node == node && slices.Contains(r.Needs.Ports, p) && !shared {
				return false
			}
		}
	}
	return true
}

// rules are those that look at a node alone.
func (m *model) rules(node int, r *scheduler.Revision) bool {
	n := &m.nodes[node]
	for _, rule := range r.Needs.Rules {
		value := n.Labels[rule.Key]
		if rule.Key == spec.LabelName {
			value = n.Name
		}
		if !slices.Contains(rule.Values, value) {
			return false
		}
	}
	for _, taint := range n.Taints {
		if _, borne := scheduler.Bears(r.Needs.Tolerations, taint); !borne && taint.Effect != scheduler.PreferNoSchedule {
			return false
		}
	}
	for _, s := range r.Wishes.Spread {
		if s.MaxSkew > 0 && m.domain(node, s.Key) == "" {
			return false
		}
	}
	for _, a := range r.Wishes.Affinity {
		if a.Weight == 0 && !a.Anti && m.domain(node, a.Key) == "" {
			return false
		}
	}
	return n.Unschedulable == "" && slices.Contains(n.Drivers, r.Needs.Driver)
}

func (m *model) domain(node int, key string) string {
	switch key {
	case scheduler.KeyNode:
		return m.nodes[node].UID
	case scheduler.KeyZone:
		return m.nodes[node].Zone
	default:
		return m.nodes[node].Labels[key]
	}
}

// count counts replicas in the domain of a node.
func (m *model) count(node int, key string, is func(*scheduler.Revision) bool) (n int) {
	for _, o := range m.replicas {
		if is(o.r) && m.domain(o.node, key) == m.domain(node, key) && m.domain(node, key) != "" {
			n++
		}
	}
	return n
}

// topology checks spreads and affinities.
func (m *model) topology(node int, r *scheduler.Revision) bool {
	own := func(o *scheduler.Revision) bool { return o.Workload == r.Workload }
	for _, s := range r.Wishes.Spread {
		fewest := 1 << 30
		for i := range m.nodes {
			if m.rules(i, r) {
				fewest = min(fewest, m.count(i, s.Key, own))
			}
		}
		if s.MaxSkew > 0 && m.count(node, s.Key, own)+1-fewest > s.MaxSkew {
			return false
		}
	}
	for _, a := range r.Wishes.Affinity {
		about := func(o *scheduler.Revision) bool { return o.Name == a.Workload }
		if a.Weight > 0 {
			continue
		}
		anywhere := slices.ContainsFunc(m.replicas, func(o running) bool { return about(o.r) })
		here := m.count(node, a.Key, about) > 0
		if a.Anti && here || !a.Anti && !here && (anywhere || a.Workload != r.Name) {
			return false
		}
	}
	for _, o := range m.replicas {
		for _, a := range o.r.Wishes.Affinity {
			if a.Weight == 0 && a.Anti && a.Workload == r.Name && o.r.Workload != r.Workload &&
				m.domain(node, a.Key) != "" && m.domain(node, a.Key) == m.domain(o.node, a.Key) {
				return false
			}
		}
	}
	return true
}

func (m *model) quota(r *scheduler.Revision) bool {
	q := m.quotas[r.Namespace]
	var used scheduler.Resources
	count := int64(0)
	for _, o := range m.replicas {
		if m.nodes[o.node].Away {
			continue
		}
		count++
		for k, n := range o.r.Needs.Resources {
			used[k] += n
		}
	}
	for k, limit := range q.Resources {
		if need := r.Needs.Resources[k]; limit != 0 && need > 0 && used[k]+need > limit {
			return false
		}
	}
	return q.Replicas == 0 || count < q.Replicas
}

func (m *model) takes(node int, r *scheduler.Revision) bool {
	return m.rules(node, r) && m.fits(node, r) && m.topology(node, r) && m.quota(r)
}

func (m *model) index(uid string) int {
	return slices.IndexFunc(m.nodes, func(n scheduler.Node) bool { return n.UID == uid })
}

func (m *model) clone() *model {
	return &model{nodes: m.nodes, replicas: slices.Clone(m.replicas), quotas: m.quotas}
}

var workloadNames = []string{"w1", "w2", "w3", "w4"}

// anyRevision draws one of a workload; all of one name are the same.
func anyRevisions(t *rapid.T) map[string]*scheduler.Revision {
	drawn := map[string]*scheduler.Revision{}
	for _, name := range workloadNames {
		r := revision(name, 0, priority(rapid.SampledFrom([]int{0, 100, 150, 300, 600}).Draw(t, "priority")))
		r.Needs.Resources[scheduler.CPU] = 250 * rapid.Int64Range(0, 5).Draw(t, "cpu")
		r.Needs.Resources[scheduler.Memory] = 512 << 20 * rapid.Int64Range(0, 3).Draw(t, "memory")
		r.MinAvailable = rapid.IntRange(0, 2).Draw(t, "available")
		r.Wishes.Strategy = rapid.SampledFrom([]scheduler.Strategy{"", scheduler.Pack, scheduler.BestFit, scheduler.Even}).Draw(t, "strategy")
		if rapid.Bool().Draw(t, "labelled") {
			rule, _ := scheduler.NewRule("disk", scheduler.OpIn, "ssd")
			r.Needs.Rules = []scheduler.Rule{rule}
		}
		if rapid.IntRange(0, 3).Draw(t, "named") == 0 {
			rule, _ := scheduler.NewRule(spec.LabelName, scheduler.OpIn, "n0", "n2", "n4")
			r.Needs.Rules = append(r.Needs.Rules, rule)
		}
		if rapid.Bool().Draw(t, "tolerant") {
			r.Needs.Tolerations = []scheduler.Toleration{{Key: "spot"}}
		}
		if rapid.Bool().Draw(t, "ported") {
			r.Needs.Ports = []scheduler.Port{{Number: rapid.Int32Range(1, 3).Draw(t, "port"), Protocol: "tcp"}}
			r.Needs.SharePorts = rapid.Bool().Draw(t, "shared")
		}
		keys := rapid.SampledFrom([]string{scheduler.KeyNode, scheduler.KeyZone, "rack"})
		r.Wishes.Spread = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) scheduler.Spread {
			return scheduler.Spread{Key: keys.Draw(t, "key"), MaxSkew: rapid.IntRange(0, 2).Draw(t, "skew")}
		}), 0, 2, func(s scheduler.Spread) string { return s.Key }).Draw(t, "spread")
		r.Wishes.Affinity = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) scheduler.Affinity {
			return scheduler.Affinity{
				Workload: rapid.SampledFrom(workloadNames).Draw(t, "about"), Key: keys.Draw(t, "key"),
				Anti: rapid.Bool().Draw(t, "anti"), Weight: rapid.Int32Range(0, 2).Draw(t, "weight"),
			}
		}), 0, 2).Draw(t, "affinity")
		drawn[name] = r
	}
	return drawn
}

func anyNode(t *rapid.T, i int) scheduler.Node {
	return node(fmt.Sprint("n", i), func(n *scheduler.Node) {
		n.Zone = rapid.SampledFrom([]string{"x", "y", ""}).Draw(t, "zone")
		n.Labels = map[string]string{"rack": rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "rack")}
		n.Labels["disk"] = rapid.SampledFrom([]string{"ssd", "hdd"}).Draw(t, "disk")
		n.Reliability = rapid.Int32Range(0, 4).Draw(t, "reliability") * 250
		n.Price = rapid.Int64Range(0, 3).Draw(t, "price")
		if rapid.IntRange(0, 4).Draw(t, "taint") == 0 {
			n.Taints = []scheduler.Taint{{Key: "spot", Effect: rapid.SampledFrom([]string{scheduler.NoSchedule, scheduler.PreferNoSchedule}).Draw(t, "effect")}}
		}
		if rapid.IntRange(0, 6).Draw(t, "off") == 0 {
			n.Unschedulable, n.Away = "is offline", true
		}
	})
}

func anyCluster(t *rapid.T) (*model, map[string]*scheduler.Revision) {
	m := &model{quotas: map[string]scheduler.Quota{}}
	for i := range rapid.IntRange(0, 6).Draw(t, "nodes") {
		m.nodes = append(m.nodes, anyNode(t, i))
	}
	revisions := anyRevisions(t)
	for i := range m.nodes {
		for range rapid.IntRange(0, 3).Draw(t, "replicas") {
			r := revisions[rapid.SampledFrom(workloadNames).Draw(t, "of")]
			if m.fits(i, r) { // where rules changed, something may run that would not be placed
				leaving := rapid.IntRange(0, 5).Draw(t, "leaving") == 0
				m.replicas = append(m.replicas, running{uid: fmt.Sprint("replica", len(m.replicas)), r: r, node: i, leaving: leaving})
			}
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "limited") == 0 {
		m.quotas["default"] = scheduler.Quota{
			Replicas: rapid.Int64Range(0, 12).Draw(t, "most"), Resources: scheduler.Resources{scheduler.CPU: rapid.Int64Range(0, 8).Draw(t, "most cpu") * 1000},
		}
	}
	return m, revisions
}

func anyRequest(t *rapid.T, revisions map[string]*scheduler.Revision) scheduler.Request {
	r := scheduler.Request{Reasons: true}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(workloadNames), 0, 4, rapid.ID[string]).Draw(t, "asked") {
		r.Asks = append(r.Asks, scheduler.Ask{Revision: revisions[name], Count: rapid.IntRange(-1, 8).Draw(t, "count")})
	}
	return r
}

// placingOrder has the asks by priority, and otherwise in their order.
func placingOrder(r scheduler.Request) []int {
	order := make([]int, len(r.Asks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return r.Asks[b].Revision.Priority - r.Asks[a].Revision.Priority })
	return order
}

// replay carries a plan out on the model step by step and checks every promise.
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
		t.Fatalf("nobody asked for %+v and %+v", plan.Placements[next:], unplaced)
	}
}

// carryOut has those leave who have to go and places one replica.
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
		sameClass := gone.Priority > 100 && gone.Priority <= 500 && r.Priority <= 500 || gone.Priority > 500 || r.Priority <= 100
		if r.Priority <= 100 || gone.Priority >= r.Priority || left < gone.MinAvailable && sameClass {
			t.Fatalf("%s of priority %d pushes out %s of %d, of which %d stay", r.Name, r.Priority, gone.Name, gone.Priority, left)
		}
	}
	node := m.index(p.Node)
	// Who waits for others needs the room when they have ended, but keeps all rules already now.
	fits := m.fits
	if p.Preempts {
		fits = m.later().fits
	}
	if !m.rules(node, r) || !fits(node, r) || !m.topology(node, r) || !m.quota(r) || p.Preempts && m.takes(node, r) {
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

// The promises of the package: no node over its capacity, no rule broken, nothing
// left over that a node would take, the same plan in whatever order the view
// came about, and a view that is afterwards as before.
func TestPlanKeepsItsPromises(t *testing.T) {
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

// A plan that is carried out leaves the cluster as it predicted: the same amounts
// are promised, nothing has room now that had none, and whatever is asked next is
// answered as by a view that is made anew of what is there.
func TestCarriedOutIsAsPredicted(t *testing.T) {
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
			free := after.free(i)
			for k, promised := range v.Requested(n.UID) {
				if promised != n.Capacity[k]-free[k] {
					t.Fatalf("%d of %v is promised on %s, not %d", promised, scheduler.Resource(k), n.Name, n.Capacity[k]-free[k])
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
		anew := after.view(after.inOrder())
		if got, want := v.Plan(next), anew.Plan(next); !reflect.DeepEqual(got, want) {
			t.Fatalf("the next plan is\n%+v\nand made anew\n%+v", got, want)
		}
		for _, one := range revisions {
			q := scheduler.Question{Revision: one}
			if got, want := v.Explain(q), anew.Explain(q); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s is explained by\n%+v\nand made anew by\n%+v", one.Name, got, want)
			}
		}
	})
}

// rename gives the replicas of a plan that was replayed, which are the last ones,
// the uids under which it was carried out.
func (m *model) rename(plan scheduler.Plan) {
	first := len(m.replicas) - len(plan.Placements)
	for i := range plan.Placements {
		m.replicas[first+i].uid = fmt.Sprint("new", i)
	}
}

// Who preempts takes nothing from those before: the first ask, in the order in
// which they are placed, that preemption makes a difference to has fewer unplaced
// replicas with it. Those after it may have more: what it got may be in their way.
func TestPreemptionNeverHurtsTheHigher(t *testing.T) {
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

// Who needs more is refused by all that refused it before.
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
