package replicas

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// addRuled creates a workload that is placed by rules.
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
		if old.GetSpec().GetNodeUid() == "" || rollout.Ended(old.GetStatus().GetPhase()) {
			continue
		}
		r := proto.CloneOf(old)
		r.Status.Phase, r.Status.EndTime = rollout.PhaseFailed, timestamppb.New(w.now())
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

// What a rule is about may change between the plan and its commit although nothing
// is placed there: what would break the rule then is handed back.
func TestRulesAboutOthersHoldAtTheCommit(t *testing.T) {
	for what, c := range map[string]struct {
		db, web *v1.Placement
		meddle  func(*world)
		want    []string
	}{
		"the node of the other moves to another zone": {
			db: &v1.Placement{Labels: map[string]string{"name": "a"}}, web: nearDB,
			meddle: func(w *world) { w.setZone("a", "z3") }, want: []string{" pending"},
		},
		"the other ends": {
			db: &v1.Placement{Labels: map[string]string{"name": "a"}}, web: nearDB,
			meddle: func(w *world) { w.fail("db"); w.setNode("a", "cordoned") }, want: []string{" pending"},
		},
		"one to keep away from comes into the zone": {
			db: &v1.Placement{Labels: map[string]string{"name": "c"}}, web: farOfDB,
			meddle: func(w *world) { w.setZone("c", "z1") }, want: []string{"d placed"},
		},
		"one that keeps others away comes into the zone": {
			db:     &v1.Placement{Labels: map[string]string{"name": "c"}, Affinity: farOfWeb.GetAffinity()},
			meddle: func(w *world) { w.setZone("c", "z1") }, want: []string{"d placed"},
		},
		"one in the zone is called otherwise": {
			db:  &v1.Placement{Labels: map[string]string{"name": "a"}},
			web: &v1.Placement{Affinity: []*v1.Affinity{{Labels: "app=old", Key: "zone", Anti: true}}, Labels: map[string]string{"zone": "z1"}},
			meddle: func(w *world) {
				w.edit("db", func(_ *state.Batch, of *v1.Workload) { of.Metadata.Labels["app"] = "old" })
			},
			want: []string{" pending"},
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			for name, zone := range map[string]string{"a": "z1", "b": "z1", "c": "z2", "d": "z2"} {
				w.addNode(name, "1") // so nobody is where the other is
				w.setZone(name, zone)
			}
			d := drive(w)
			w.addRuled("db", 1, c.db)
			d.rest()
			d.loop.Proposer = ruled{&meddled{driven: d, before: []func(){func() { c.meddle(w) }}}}
			w.addRuled("web", 1, c.web)
			d.react()
			d.wantWhere("web", c.want...)
		})
	}
}

// Whatever happens to nodes and to others between plan and commit, and whatever else
// is decided in the same commit.
func TestCommitBreaksNoRuleAboutOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		zones := rapid.SampledFrom([]string{"z1", "z2", "z3"})
		nodes, names := rapid.SampledFrom([]string{"a", "b", "c", "d"}), rapid.SampledFrom([]string{"db", "web", "shy", "even"})
		for _, name := range []string{"a", "b", "c", "d"} {
			w.addNode(name, "4")
			w.setZone(name, zones.Draw(t, "zone of "+name))
		}
		d := drive(w)
		m := &meddled{driven: d}
		d.loop.Proposer = ruled{m}
		w.addRuled("db", 1, nil)
		w.addRuled("web", 1, nearDB)
		w.addRuled("shy", 1, farOfDB)
		w.addRuled("even", 2, levelled)
		event := func() func() {
			node, zone, name := nodes.Draw(t, "node"), zones.Draw(t, "zone"), names.Draw(t, "workload")
			switch rapid.SampledFrom([]string{"zone", "cordon", "ready", "offline", "end", "work"}).Draw(t, "what") {
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
			default:
				return func() { w.work() }
			}
		}
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			w.scale(names.Draw(t, "scaled"), rapid.Int32Range(0, 4).Draw(t, "replicas"))
			event()()
			for range rapid.IntRange(0, 3).Draw(t, "meddlings") {
				m.before = append(m.before, event())
			}
			d.react()
		}
		m.before = nil
		d.rest()
	})
}

// ruled checks that what a commit has placed is where its rules want it, as things
// were right before it.
type ruled struct{ *meddled }

func (c ruled) Propose(ctx context.Context, tx *statev1.Transaction) (state.Result, error) {
	var before *state.Snapshot
	last := func() { before = c.snap() }
	if len(c.before) > 0 {
		first := c.before[0]
		c.before[0] = func() { first(); last() }
	} else {
		last()
	}
	result, err := c.meddled.Propose(ctx, tx)
	for _, o := range result.Objects {
		r, ok := o.(*v1.Replica)
		if ok && r.GetStatus().GetPhase() == rollout.PhasePlaced && before.Replica(r.GetMetadata().GetUid()).GetSpec().GetNodeUid() == "" {
			c.check(r)
		}
	}
	return result, err
}

// check looks at the state after a commit; nodes are as they were before it.
func (c ruled) check(placed *v1.Replica) {
	zone := func(r *v1.Replica) string {
		return c.snap().Node(r.GetSpec().GetNodeUid()).GetMetadata().GetLabels()[spec.LabelZone]
	}
	count := func(match func(*v1.Workload) bool) map[string]int { // by zone
		counts := map[string]int{}
		for r := range c.snap().Replicas("", "") {
			of := c.snap().Workload(r.GetSpec().GetWorkloadUid())
			if of != nil && r.GetSpec().GetNodeUid() != "" && !rollout.Ended(r.GetStatus().GetPhase()) && match(of) {
				counts[zone(r)]++
			}
		}
		return counts
	}
	mine := c.snap().Workload(placed.GetSpec().GetWorkloadUid())
	for _, a := range mine.GetSpec().GetPlacement().GetAffinity() {
		selector, err := spec.ParseSelector(a.GetLabels())
		if err != nil {
			c.t.Fatalf("%v", err)
		}
		others := count(func(w *v1.Workload) bool {
			return w.GetMetadata().GetName() == a.GetWorkload() || a.GetWorkload() == "" && selector.Matches(w.GetMetadata().GetLabels())
		})
		if (others[zone(placed)] > 0) == a.GetAnti() {
			c.t.Fatalf("%s was placed in %s, and %v are in %v", placed.GetMetadata().GetName(), zone(placed), a, others)
		}
	}
	for _, s := range mine.GetSpec().GetPlacement().GetSpread() {
		there := count(func(w *v1.Workload) bool { return w == mine })
		if skew := there[zone(placed)] - c.fewest(there); skew > int(s.GetMaxSkew()) {
			c.t.Fatalf("%s was placed in %s: %v", placed.GetMetadata().GetName(), zone(placed), fmt.Sprint(there))
		}
	}
}

// fewest is how many are in the zone with the fewest of those that take something.
func (c ruled) fewest(counts map[string]int) int {
	fewest := -1
	for n := range c.snap().Nodes("") {
		if at := counts[n.GetMetadata().GetLabels()[spec.LabelZone]]; n.GetStatus().GetState() == "ready" && (fewest < 0 || at < fewest) {
			fewest = at
		}
	}
	return fewest
}
