package scheduler_test

import (
	"fmt"
	"slices"

	"pgregory.net/rapid"

	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
)

// model is a cluster with the rules but without classes, heaps, scores or journals. It is
// slow and plain.
type model struct {
	nodes    []scheduler.Node
	replicas []running
	quotas   map[string]scheduler.Quota
}

type running struct {
	uid  string
	r    *scheduler.Revision
	node int // index
	// leaving is stopping, planned is not there yet.
	leaving, planned bool
}

// view builds the real view from the model, in some order. Offline nodes have not always
// been offline.
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

// inOrder are all nodes in their order.
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

// later is the model after the leaving replicas have ended.
func (m *model) later() *model {
	after := m.clone()
	after.replicas = slices.DeleteFunc(after.replicas, func(o running) bool { return o.leaving })
	return after
}

// room is what may be promised on a node.
func room(n *scheduler.Node) scheduler.Resources {
	all := n.Capacity
	for k := range all {
		if more := n.Overcommit[k]; more > 0 {
			all[k] = all[k] * more / 1000
		}
		all[k] = max(0, all[k]-n.Reserved[k])
	}
	return all
}

func (m *model) free(node int) scheduler.Resources {
	free := room(&m.nodes[node])
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

// rules checks the rules about a node alone.
func (m *model) rules(node int, r *scheduler.Revision) bool {
	n := &m.nodes[node]
	for _, rule := range r.Needs.Rules {
		value, has := n.Labels[rule.Key]
		if rule.Key == spec.LabelName {
			value, has = n.Name, true
		}
		if !slices.Contains(ruleOf(rule).accepts, valueOf(value, has)) {
			return false
		}
	}
	for _, taint := range n.Taints {
		if taint.Effect != scheduler.PreferNoSchedule && !bears(r.Needs.Tolerations, taint) {
			return false
		}
	}
	if !among(r.Needs.Regions, n.Region) || !among(r.Needs.Zones, n.Zone) || !among(r.Needs.Nodes, n.UID) || !among(r.Needs.Platforms, n.Platform) {
		return false
	}
	if r.Needs.Resources[scheduler.GPU] > 0 && r.Needs.GPUModel != "" && r.Needs.GPUModel != n.GPUModel {
		return false
	}
	for _, s := range r.Preferences.Spread {
		if s.MaxSkew > 0 && m.domain(node, s.Key) == "" {
			return false
		}
	}
	for _, a := range r.Preferences.Affinity {
		if a.Weight == 0 && !a.Anti && m.domain(node, a.Key) == "" {
			return false
		}
	}
	return n.Unschedulable == "" && slices.Contains(n.Drivers, r.Needs.Driver)
}

// among reports whether a value is allowed; an empty list allows all.
func among(may []string, value string) bool { return len(may) == 0 || slices.Contains(may, value) }

// bears reports whether a taint is tolerated forever. All tolerations here are about one
// key.
func bears(tolerations []scheduler.Toleration, taint scheduler.Taint) bool {
	return slices.ContainsFunc(tolerations, func(t scheduler.Toleration) bool {
		return t.Key == taint.Key && (t.Effect == "" || t.Effect == taint.Effect) && (t.Seconds == 0 || taint.Effect != scheduler.NoExecute)
	})
}

// knownRule is a rule and the values that it accepts, of all that nodes here have for its
// label.
type knownRule struct {
	key, operator string
	values        []string
	accepts       []string
}

// missing stands for a missing label.
const missing = "(missing)"

func valueOf(value string, has bool) string {
	if !has {
		return missing
	}
	return value
}

var (
	disks   = []string{"ssd", "hdd", missing}
	slots   = []string{"2", "8", "10", "many", missing}
	kernels = []string{"5.10.0", "6.1.9", "6.12.0", "unknown", missing}

	knownRules = []knownRule{
		{"disk", scheduler.OpIn, []string{"ssd"}, []string{"ssd"}},
		{"disk", scheduler.OpIn, []string{"ssd", "hdd"}, []string{"ssd", "hdd"}},
		{"disk", scheduler.OpNotIn, []string{"hdd"}, []string{"ssd", missing}},
		{"disk", scheduler.OpExists, nil, []string{"ssd", "hdd"}},
		{"disk", scheduler.OpNotExists, nil, []string{missing}},
		{"disk", scheduler.OpMatches, []string{"s+d|nvme"}, []string{"ssd"}},
		{"slots", scheduler.OpGreater, []string{"8"}, []string{"10"}},
		{"slots", scheduler.OpLess, []string{"10"}, []string{"2", "8"}},
		{"kernel", scheduler.OpVersion, []string{">=6.1"}, []string{"6.1.9", "6.12.0"}},
		{spec.LabelName, scheduler.OpIn, []string{"n0", "n2", "n4"}, []string{"n0", "n2", "n4"}},
		{spec.LabelName, scheduler.OpNotIn, []string{"n1"}, []string{"n0", "n2", "n3", "n4", "n5", "n6", "n7"}},
	}
)

// ruleOf finds what a rule accepts.
func ruleOf(r scheduler.Rule) knownRule {
	i := slices.IndexFunc(knownRules, func(k knownRule) bool {
		return k.key == r.Key && k.operator == r.Operator && slices.Equal(slices.Sorted(slices.Values(k.values)), r.Values)
	})
	return knownRules[i]
}

// about reports whether an affinity matches a workload, by its name or by its tier.
func about(a scheduler.Affinity, o *scheduler.Revision) bool {
	if a.Workload != "" {
		return a.Workload == o.Name
	}
	return a.Selector.String() == "tier="+o.Labels["tier"]
}

func (m *model) domain(node int, key string) string {
	switch key {
	case scheduler.KeyRegion:
		return m.nodes[node].Region
	case scheduler.KeyNode:
		return m.nodes[node].UID
	case scheduler.KeyZone:
		if m.nodes[node].Zone == "" {
			return ""
		}
		return m.nodes[node].Region + "/" + m.nodes[node].Zone // two regions may use the same zone name
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
	return m.level(node, r) && m.near(node, r) && m.apart(node, r, otherKeys) && m.apart(node, r, nodeKey)
}

// level checks spreads.
func (m *model) level(node int, r *scheduler.Revision) bool {
	own := func(o *scheduler.Revision) bool { return o.Workload == r.Workload }
	for _, s := range r.Preferences.Spread {
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
	return true
}

// near checks required affinity. A replica that is about to end does not count.
func (m *model) near(node int, r *scheduler.Revision) bool {
	for _, a := range r.Preferences.Affinity {
		if a.Weight > 0 || a.Anti {
			continue
		}
		staying := &model{nodes: m.nodes, replicas: slices.DeleteFunc(slices.Clone(m.replicas), func(o running) bool { return o.leaving })}
		anywhere := slices.ContainsFunc(staying.replicas, func(o running) bool { return about(a, o.r) })
		here := staying.count(node, a.Key, func(o *scheduler.Revision) bool { return about(a, o) }) > 0
		if !here && (anywhere || !about(a, r)) {
			return false
		}
	}
	return true
}

// follows reports whether one must be near another, and is.
func (m *model) follows(one, other running) bool {
	return one.r.Workload != other.r.Workload && slices.ContainsFunc(one.r.Preferences.Affinity, func(a scheduler.Affinity) bool {
		d := m.domain(one.node, a.Key)
		return a.Weight == 0 && !a.Anti && about(a, other.r) && d != "" && d == m.domain(other.node, a.Key)
	})
}

func otherKeys(key string) bool { return key != scheduler.KeyNode }
func nodeKey(key string) bool   { return key == scheduler.KeyNode }

// apart checks anti-affinity in both directions, by some keys.
func (m *model) apart(node int, r *scheduler.Revision, by func(key string) bool) bool {
	for _, o := range m.replicas {
		keeps := func(from, to *scheduler.Revision) bool {
			return slices.ContainsFunc(from.Preferences.Affinity, func(a scheduler.Affinity) bool {
				d := m.domain(node, a.Key)
				return a.Weight == 0 && a.Anti && by(a.Key) && about(a, to) && d != "" && d == m.domain(o.node, a.Key)
			})
		}
		if keeps(r, o.r) || o.r.Workload != r.Workload && keeps(o.r, r) {
			return false
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

// anyRevisions draws one revision for each workload name.
func anyRevisions(t *rapid.T) map[string]*scheduler.Revision {
	drawn := map[string]*scheduler.Revision{}
	for _, name := range workloadNames {
		r := revision(name, 0, priority(rapid.SampledFrom([]int{0, 100, 150, 300, 600}).Draw(t, "priority")))
		r.Needs.Resources[scheduler.CPU] = 250 * rapid.Int64Range(0, 5).Draw(t, "cpu")
		r.Needs.Resources[scheduler.Memory] = 512 << 20 * rapid.Int64Range(0, 3).Draw(t, "memory")
		r.MinAvailable = rapid.IntRange(0, 2).Draw(t, "available")
		r.Preferences.Strategy = rapid.SampledFrom([]scheduler.Strategy{"", scheduler.Pack, scheduler.BestFit, scheduler.Even}).Draw(t, "strategy")
		r.Labels = map[string]string{"tier": rapid.SampledFrom(tiers).Draw(t, "tier")}
		demandPlaces(t, r)
		if rapid.Bool().Draw(t, "ported") {
			r.Needs.Ports = []scheduler.Port{{Number: rapid.Int32Range(1, 3).Draw(t, "port"), Protocol: "tcp"}}
			r.Needs.SharePorts = rapid.Bool().Draw(t, "shared")
		}
		keys := rapid.SampledFrom([]string{scheduler.KeyNode, scheduler.KeyZone, scheduler.KeyRegion, "rack"})
		r.Preferences.Spread = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) scheduler.Spread {
			return scheduler.Spread{Key: keys.Draw(t, "key"), MaxSkew: rapid.IntRange(0, 2).Draw(t, "skew")}
		}), 0, 2, func(s scheduler.Spread) string { return s.Key }).Draw(t, "spread")
		r.Preferences.Affinity = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) scheduler.Affinity {
			a := scheduler.Affinity{
				Workload: rapid.SampledFrom(append(workloadNames, "")).Draw(t, "about"), Key: keys.Draw(t, "key"),
				Anti: rapid.Bool().Draw(t, "anti"), Weight: rapid.Int32Range(0, 2).Draw(t, "weight"),
			}
			if a.Workload == "" {
				a.Selector, _ = spec.ParseSelector("tier=" + rapid.SampledFrom(tiers).Draw(t, "tiers"))
			}
			return a
		}), 0, 2).Draw(t, "affinity")
		drawn[name] = r
	}
	return drawn
}

var tiers = []string{"front", "back"}

// demandPlaces draws requirements for nodes, mostly none.
func demandPlaces(t *rapid.T, r *scheduler.Revision) {
	seldom := func(what string) bool { return rapid.IntRange(0, 5).Draw(t, what) == 0 }
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 1, 2}).Draw(t, "rules") {
		known := rapid.SampledFrom(knownRules).Draw(t, "rule")
		rule, _ := scheduler.NewRule(known.key, known.operator, known.values...)
		r.Needs.Rules = append(r.Needs.Rules, rule)
	}
	if rapid.Bool().Draw(t, "tolerant") {
		r.Needs.Tolerations = []scheduler.Toleration{{
			Key: "spot", Effect: rapid.SampledFrom([]string{"", scheduler.NoSchedule, scheduler.NoExecute}).Draw(t, "borne"),
			Seconds: rapid.SampledFrom([]int64{0, 0, 30}).Draw(t, "seconds"),
		}}
	}
	if seldom("somewhere") {
		r.Needs.Zones = []string{"x"}
	}
	if seldom("regional") {
		r.Needs.Regions = []string{"north"}
	}
	if seldom("bound") {
		r.Needs.Nodes = []string{"uid-n1", "uid-n2", "uid-n3"}
	}
	if seldom("built") {
		r.Needs.Platforms = []string{"linux/arm64", "linux/riscv64"}
	}
	if seldom("accelerated") {
		r.Needs.Resources[scheduler.GPU] = rapid.Int64Range(1, 2).Draw(t, "gpus")
		r.Needs.GPUModel = rapid.SampledFrom([]string{"", "t4"}).Draw(t, "model")
	}
}

func anyNode(t *rapid.T, i int) scheduler.Node {
	return node(fmt.Sprint("n", i), func(n *scheduler.Node) {
		n.Zone = rapid.SampledFrom([]string{"x", "y", ""}).Draw(t, "zone")
		n.Region = rapid.SampledFrom([]string{"north", "south", ""}).Draw(t, "region")
		n.Labels = map[string]string{"rack": rapid.SampledFrom([]string{"r1", "r2"}).Draw(t, "rack")}
		for _, label := range []struct {
			key    string
			values []string
		}{{"disk", disks}, {"slots", slots}, {"kernel", kernels}} {
			if value := rapid.SampledFrom(label.values).Draw(t, label.key); value != missing {
				n.Labels[label.key] = value
			}
		}
		n.Platform = rapid.SampledFrom([]string{"linux/amd64", "linux/arm64"}).Draw(t, "platform")
		n.Capacity[scheduler.GPU] = rapid.Int64Range(0, 3).Draw(t, "devices")
		n.GPUModel = rapid.SampledFrom([]string{"t4", "a100"}).Draw(t, "model")
		n.Overcommit[scheduler.CPU] = rapid.SampledFrom([]int64{0, 0, 500, 1500}).Draw(t, "overcommit")
		n.Reserved[scheduler.Memory] = rapid.SampledFrom([]int64{0, 0, gi, 8 * gi}).Draw(t, "reserved")
		n.Reliability = rapid.Int32Range(0, 4).Draw(t, "reliability") * 250
		n.Price = rapid.Int64Range(0, 3).Draw(t, "price")
		if rapid.IntRange(0, 4).Draw(t, "taint") == 0 {
			n.Taints = []scheduler.Taint{{Key: "spot", Effect: rapid.SampledFrom([]string{scheduler.NoSchedule, scheduler.PreferNoSchedule, scheduler.NoExecute}).Draw(t, "effect")}}
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
			if m.fits(i, r) { // after a change of rules, something may run that would not be placed
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

// placingOrder sorts the asks by priority, otherwise in their order.
func placingOrder(r scheduler.Request) []int {
	order := make([]int, len(r.Asks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return r.Asks[b].Revision.Priority - r.Asks[a].Revision.Priority })
	return order
}
