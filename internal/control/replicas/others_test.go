package replicas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// addRuled creates a workload with placement rules.
func (w *world) addRuled(name string, replicas int32, p *v1.Placement) {
	w.t.Helper()
	made := newWorkload(w.newUID(), name, replicas, "1")
	made.Spec.Placement = p
	w.change(func(b *state.Batch) { w.revise(b, made); b.Create(made) })
}

func (w *world) setZone(name, zone string) {
	w.t.Helper()
	w.editNode(name, func(n *v1.Node) { n.Metadata.Labels[spec.LabelZone] = zone })
}

// fail ends one live replica of a workload, if there is one on a node.
func (w *world) fail(name string) {
	w.t.Helper()
	for _, old := range w.of(name) {
		if old.GetSpec().GetNodeUid() == "" || spec.Ended(old.GetStatus().GetPhase()) {
			continue
		}
		r := proto.CloneOf(old)
		r.Status.Phase, r.Status.EndTime = spec.PhaseFailed, timestamppb.New(w.now())
		w.change(func(b *state.Batch) { b.Update(r, old.GetMetadata().GetVersion()) })
		return
	}
}

var (
	nearDB   = &v1.Placement{Affinity: []*v1.Affinity{{Workload: "db", Key: "zone"}}}
	farOfDB  = &v1.Placement{Affinity: []*v1.Affinity{{Labels: "app=db", Key: "zone", Anti: true}}}
	farOfWeb = &v1.Placement{Affinity: []*v1.Affinity{{Workload: "web", Key: "zone", Anti: true}}}
	levelled = &v1.Placement{Spread: []*v1.Spread{{Key: "zone", MaxSkew: 1}}}
)

// The workload that an affinity rule names may change between plan and commit, although
// nothing is placed there. A placement that would then break the rule is planned again.
func TestAffinityRulesHoldAtTheCommit(t *testing.T) {
	for what, c := range map[string]struct {
		db, web *v1.Placement
		race    func(*world)
		want    []string
	}{
		"the node of the other moves to another zone": {
			db: &v1.Placement{Labels: map[string]string{"name": "a"}}, web: nearDB,
			race: func(w *world) { w.setZone("a", "z3") }, want: []string{" pending"},
		},
		"the other ends": {
			db: &v1.Placement{Labels: map[string]string{"name": "a"}}, web: nearDB,
			race: func(w *world) { w.fail("db"); w.setNode("a", "cordoned") }, want: []string{" pending"},
		},
		"one to keep away from comes into the zone": {
			db: &v1.Placement{Labels: map[string]string{"name": "c"}}, web: farOfDB,
			race: func(w *world) { w.setZone("c", "z1") }, want: []string{"d placed"},
		},
		"one that keeps others away comes into the zone": {
			db:   &v1.Placement{Labels: map[string]string{"name": "c"}, Affinity: farOfWeb.GetAffinity()},
			race: func(w *world) { w.setZone("c", "z1") }, want: []string{"d placed"},
		},
		"it is called as one that another keeps away": {
			db:  &v1.Placement{Labels: map[string]string{"name": "a"}, Affinity: []*v1.Affinity{{Labels: "app=old", Key: "zone", Anti: true}}},
			web: &v1.Placement{Labels: map[string]string{"name": "b"}},
			race: func(w *world) {
				w.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Metadata.Labels["app"] = "old" })
			},
			want: []string{" pending"},
		},
		"one in the zone is called otherwise": {
			db:  &v1.Placement{Labels: map[string]string{"name": "a"}},
			web: &v1.Placement{Affinity: []*v1.Affinity{{Labels: "app=old", Key: "zone", Anti: true}}, Labels: map[string]string{"zone": "z1"}},
			race: func(w *world) {
				w.edit("db", func(_ *state.Batch, of *v1.Workload) { of.Metadata.Labels["app"] = "old" })
			},
			want: []string{" pending"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			for name, zone := range map[string]string{"a": "z1", "b": "z1", "c": "z2", "d": "z2"} {
				w.addNode(name, "1") // so that none runs beside the other workload
				w.setZone(name, zone)
			}
			d := drive(w)
			w.addRuled("db", 1, c.db)
			d.rest()
			d.loop.Proposer = judged{&racingLog{driven: d, before: []func(){func() { c.race(w) }}}}
			w.addRuled("web", 1, c.web)
			d.react()
			d.wantWhere("web", c.want...)
		})
	}
}

// Replicas placed in the same commit count, too.
func TestRelabelledWorkloadInTheSameCommitCounts(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addNode("b", "1")
	w.setZone("a", "z1")
	w.setZone("b", "z1")
	d := drive(w)
	d.loop.Proposer = judged{&racingLog{driven: d, before: []func(){func() {
		w.edit("db", func(_ *state.Batch, of *v1.Workload) { of.Metadata.Labels["app"] = "old" })
	}}}}
	w.addRuled("db", 1, nil)
	w.addRuled("web", 1, &v1.Placement{Affinity: []*v1.Affinity{{Labels: "app=db", Key: "zone"}}})
	d.react()
	d.wantWhere("web", " pending")
}

// If a tick has no room for all, no replica is placed next to one that was not.
func TestAffinityIgnoresUnplacedReplicas(t *testing.T) {
	w := newWorld(t)
	w.addNode("x", "1")
	w.setZone("x", "z1")
	d := drive(w)
	onSSD := &v1.Placement{Labels: map[string]string{"disk": "ssd"}}
	w.addRuled("old", maxReplicas, onSSD)
	w.addRuled("db", 1, onSSD)
	d.rest() // they wait
	w.addRuled("web", 10, nearDB)
	w.addNode("y", "1000")
	w.editNode("y", func(n *v1.Node) { n.Metadata.Labels["disk"] = "ssd"; n.Metadata.Labels[spec.LabelZone] = "z2" })
	on := func(name string) (count int) {
		for _, r := range w.of(name) {
			if r.GetSpec().GetNodeUid() != "" {
				count++
			}
		}
		return count
	}
	w.tick()
	if on("old") != maxReplicas || on("db") != 0 || on("web") != 0 {
		t.Errorf("of old %d are placed, of db %d, of web %d", on("old"), on("db"), on("web"))
	}
	for w.tick() {
	}
	if on("db") != 1 || on("web") != 10 {
		t.Errorf("in the end of db %d are placed, of web %d", on("db"), on("web"))
	}
}

// Workloads without the rule do not wait for what is planned again, and no event is written
// twice.
func TestOnlyReplicasUnderTheRuleAreLeftOut(t *testing.T) {
	const times = 5
	w := newWorld(t)
	w.addNode("a", "64")
	w.addNode("b", "64")
	d := drive(w)
	w.addRuled("db", times+1, &v1.Placement{Labels: map[string]string{"name": "a"}})
	d.rest()
	m := &racingLog{driven: d}
	for range times {
		m.before = append(m.before, func() { w.fail("db") })
	}
	m.before = append(m.before, func() {
		if got := w.phases("plain"); got[spec.PhasePlaced] != 1 {
			t.Errorf("of what has no rules there is %v", got)
		}
	})
	d.loop.Proposer, d.loop.Decisions = m, &placement.Decisions{}
	w.addRuled("web", maxPlacedEvents+1, &v1.Placement{Affinity: []*v1.Affinity{{Workload: "db", Key: "node"}}})
	w.addRuled("plain", 1, nil)
	d.react()
	for one := range d.loop.Decisions.All() {
		if w.snap().Replica(one.Replica) == nil {
			t.Errorf("a decision is remembered that was left out: %v", one)
		}
	}
	announced := 0
	for e := range w.snap().OldestEvents() {
		if e.GetSpec().GetReason() == "Placed" && strings.HasPrefix(e.GetSpec().GetMessage(), fmt.Sprint(maxPlacedEvents+1)) {
			announced++
		}
	}
	if got := w.phases("web")[spec.PhasePlaced]; got != maxPlacedEvents+1 || announced != 1 || m.tried <= times {
		t.Errorf("%d are placed, announced %d times, in %d commits", got, announced, m.tried)
	}
}

// Rules hold whatever happens to nodes and other workloads between plan and commit.
func TestCommitBreaksNoAffinityRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		zones := rapid.SampledFrom([]string{"z1", "z2", "z3"})
		nodes, names := rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.SampledFrom([]string{"db", "web", "shy", "even", "loud"})
		for _, name := range []string{"a", "b", "c", "d"} {
			w.addNode(name, "4")
			w.setZone(name, zones.Draw(t, "zone of "+name))
		}
		d := drive(w)
		m := &racingLog{driven: d}
		d.loop.Proposer = judged{m}
		w.addRuled("db", 1, nil)
		w.addRuled("web", 1, nearDB)
		w.addRuled("shy", 1, farOfDB)
		w.addRuled("even", 2, levelled)
		w.addRuled("loud", 1, &v1.Placement{Affinity: []*v1.Affinity{{Labels: "app=quiet", Key: "zone", Anti: true}}})
		event := func() func() {
			node, zone, name := nodes.Draw(t, "node"), zones.Draw(t, "zone"), names.Draw(t, "workload")
			switch rapid.SampledFrom([]string{"zone", "cordon", "ready", "offline", "end", "work", "name"}).Draw(t, "what") {
			case "zone":
				return func() { w.setZone(node, zone) }
			case "cordon":
				return func() { w.setNode(node, "cordoned") }
			case "ready":
				return func() { w.setNode(node, "ready") }
			case "offline":
				return func() { w.setNode(node, "offline") }
			case "end":
				return func() { w.fail(name) }
			case "name":
				app := rapid.SampledFrom([]string{"db", "quiet", "other"}).Draw(t, "app")
				return func() {
					w.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Metadata.Labels["app"] = app })
				}
			default:
				return func() { w.work() }
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			w.scale(names.Draw(t, "scaled"), rapid.Int32Range(0, 4).Draw(t, "replicas"))
			event()()
			for range rapid.IntRange(0, 3).Draw(t, "races") {
				m.before = append(m.before, event())
			}
			d.react()
		}
		m.before = nil
		d.rest()
	})
}

// judged checks that each commit places replicas where their rules allow, given the state
// before it.
type judged struct{ *racingLog }

func (c judged) Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error) {
	before, result, err := c.commit(ctx, tx)
	for _, r := range placedBy(before, result) {
		c.check(r)
	}
	return result, err
}

// check examines the state after a commit. Nodes are as they were before it.
func (c judged) check(placed *v1.Replica) {
	zone := func(r *v1.Replica) string {
		return c.snap().Node(r.GetSpec().GetNodeUid()).GetMetadata().GetLabels()[spec.LabelZone]
	}
	count := func(match func(*v1.Workload) bool) map[string]int { // other replicas by zone
		counts := map[string]int{}
		for r := range c.snap().Replicas("", "") {
			of := c.snap().Workload(r.GetSpec().GetWorkloadUid())
			if of != nil && r.GetMetadata().GetUid() != placed.GetMetadata().GetUid() && r.GetSpec().GetNodeUid() != "" && !spec.Ended(r.GetStatus().GetPhase()) && match(of) {
				counts[zone(r)]++
			}
		}
		return counts
	}
	mine := c.snap().Workload(placed.GetSpec().GetWorkloadUid())
	for _, a := range mine.GetSpec().GetPlacement().GetAffinity() {
		others := count(func(w *v1.Workload) bool { return isAbout(c.t, a, w) })
		if (others[zone(placed)] > 0) == a.GetAnti() {
			c.t.Fatalf("%s was placed in %s, and %v are in %v", placed.GetMetadata().GetName(), zone(placed), a, others)
		}
	}
	for other := range count(func(w *v1.Workload) bool { return w != mine && keepsAway(c.t, w, mine) }) {
		if other == zone(placed) {
			c.t.Fatalf("%s was placed in %s, where one is that keeps it away", placed.GetMetadata().GetName(), other)
		}
	}
	for _, s := range mine.GetSpec().GetPlacement().GetSpread() {
		there := count(func(w *v1.Workload) bool { return w == mine })
		there[zone(placed)]++
		if skew := there[zone(placed)] - c.fewest(there); skew > int(s.GetMaxSkew()) {
			c.t.Fatalf("%s was placed in %s: %v", placed.GetMetadata().GetName(), zone(placed), fmt.Sprint(there))
		}
	}
}

// keepsAway reports whether a rule of one workload keeps another away.
func keepsAway(t fatal, one, other *v1.Workload) bool {
	for _, a := range one.GetSpec().GetPlacement().GetAffinity() {
		if a.GetAnti() && isAbout(t, a, other) {
			return true
		}
	}
	return false
}

// isAbout reports whether a rule matches a workload.
func isAbout(t fatal, a *v1.Affinity, w *v1.Workload) bool {
	selector, err := spec.ParseSelector(a.GetLabels())
	if err != nil {
		t.Fatalf("%v", err)
	}
	return a.GetWorkload() == w.GetMetadata().GetName() || a.GetWorkload() == "" && selector.Matches(w.GetMetadata().GetLabels())
}

// fewest is the smallest count among the zones that can take a replica.
func (c judged) fewest(counts map[string]int) int {
	fewest := -1
	for n := range c.snap().Nodes("") {
		if at := counts[n.GetMetadata().GetLabels()[spec.LabelZone]]; n.GetStatus().GetState() == "ready" && (fewest < 0 || at < fewest) {
			fewest = at
		}
	}
	return fewest
}

// A replica that a tick gives up is gone when its replacement is placed: the replacement
// must not make up for it in another zone.
func TestLostReplicaDoesNotCountForSpread(t *testing.T) {
	w := newWorld(t)
	nodes := []string{"a", "b", "c", "d"}
	for i, zone := range []string{"z1", "z1", "z2", "z2"} {
		w.addNode(nodes[i], "4")
		w.setZone(nodes[i], zone)
	}
	only := func(ready string) {
		for _, name := range nodes {
			if w.snap().NodeByName(name).GetStatus().GetState() != spec.NodeOffline {
				w.setNode(name, "cordoned")
			}
		}
		w.setNode(ready, spec.NodeReady)
		w.tick()
		w.work()
	}
	w.addRuled("load", 1, nil) // so that b is the better node
	only("b")
	w.addRuled("even", 1, levelled)
	only("a")
	w.setNode("a", spec.NodeOffline)
	only("c") // covers the replica on a
	w.setNode("c", spec.NodeOffline)
	w.setNode("b", spec.NodeReady)
	w.setNode("d", spec.NodeReady)
	w.tick()
	var places []string
	for _, r := range w.of("even") {
		places = append(places, r.GetSpec().GetNode()+" "+r.GetStatus().GetPhase())
	}
	slices.Sort(places)
	if !slices.Contains(places, "d placed") {
		t.Errorf("the replicas are %q, and the new one should be on d", places)
	}
}
