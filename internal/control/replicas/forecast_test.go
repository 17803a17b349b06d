package replicas

import (
	"bytes"
	"context"
	"fmt"
	"slices"
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

// driven is a world with the real loop, which runs only when called.
type driven struct {
	*world
	loop *Loop
}

func drive(w *world) *driven {
	w.t.Helper()
	d := &driven{world: w}
	d.loop = &Loop{Store: w.store, Proposer: d}
	d.loop.begin()
	d.settleLoop()
	return d
}

// Propose is the consensus of this world.
func (d *driven) Propose(_ context.Context, tx *statev1.Transaction) (state.Result, error) {
	d.index++
	return d.store.Apply(d.index, proto.CloneOf(tx))
}

// settleLoop lets the loop do what is due.
func (d *driven) settleLoop() {
	d.t.Helper()
	if err := d.loop.settle(context.Background()); err != nil {
		d.t.Fatalf("settle: %v", err)
	}
}

// follow lets the loop see the changes, and returns what is due then.
func (d *driven) follow() Due {
	d.t.Helper()
	d.loop.follow()
	return d.loop.engine.Due
}

// react lets the loop follow changes until it is idle.
func (d *driven) react() {
	d.t.Helper()
	ended, cancel := context.WithCancel(context.Background())
	cancel() // Next still returns the news that are already there
	for {
		news, err := d.loop.feed.Next(ended)
		if err != nil {
			return
		}
		d.loop.receive(news)
		d.settleLoop()
	}
}

// rest lets the loop and the nodes take turns until there is nothing to do.
func (d *driven) rest() {
	d.t.Helper()
	for range 10_000 {
		d.react()
		if !d.work() {
			return
		}
	}
	d.t.Fatalf("the world never settles")
}

// drawEdit draws one change for each of some workloads, in one transaction.
func (w *world) drawEdit(t *rapid.T) (b *state.Batch, workloads []string) {
	b = &state.Batch{}
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"w1", "w2", "w3", "w4"}), 1, 4, rapid.ID[string]).Draw(t, "edited")
	for _, name := range names {
		replicas := rapid.Int32Range(0, 6).Draw(t, "replicas of "+name)
		cpu := rapid.SampledFrom([]string{"250m", "500m", "1", "3"}).Draw(t, "cpu of "+name)
		old := w.snap().WorkloadByName("default", name)
		if old == nil {
			made := newWorkload(w.newUID(), name, replicas, cpu)
			w.revise(b, made)
			b.Create(made)
			workloads = append(workloads, made.GetMetadata().GetUid())
			continue
		}
		workloads = append(workloads, old.GetMetadata().GetUid())
		if old.GetMetadata().GetDeleteTime() != nil {
			continue
		}
		edited := proto.CloneOf(old)
		switch rapid.SampledFrom([]string{"nothing", "scale", "restart", "change", "delete"}).Draw(t, "edit of "+name) {
		case "nothing":
			continue
		case "scale":
			edited.Spec.Replicas = &replicas
		case "restart":
			w.revise(b, edited)
		case "change":
			edited.Spec.Replicas = &replicas
			edited.Spec.Resources.Requests.Cpu = cpu
			w.revise(b, edited)
		case "delete":
			edited.Metadata.DeleteTime = timestamppb.New(w.now())
		}
		b.Update(edited, old.GetMetadata().GetVersion())
	}
	return b, workloads
}

// shown is where a forecast puts the replicas of a workload.
func shown(p *v1.PlanChange) (nodes, kept []string, pending int) {
	for _, step := range p.GetReplicas() {
		switch {
		case step.GetAction() == "keep":
			kept = append(kept, step.GetReplica())
			nodes = append(nodes, step.GetToNode())
		case step.GetToNode() != "":
			nodes = append(nodes, step.GetToNode())
		}
	}
	slices.Sort(nodes)
	slices.Sort(kept)
	return nodes, kept, int(p.GetUnplaced())
}

// real is where the replicas of a workload actually are.
func real(before, after *state.Snapshot, uid string) (nodes, kept []string, pending int) {
	revision := after.Workload(uid).GetStatus().GetRevisionUid()
	outdated := 0
	for r := range after.ReplicasOf(uid) {
		if !placement.Wanted(r) {
			continue
		}
		if r.GetSpec().GetNodeUid() == "" {
			pending++
			continue
		}
		nodes = append(nodes, r.GetSpec().GetNode())
		if was := before.Replica(r.GetMetadata().GetUid()); was.GetSpec().GetNodeUid() != "" {
			kept = append(kept, r.GetMetadata().GetName())
		}
		if offline := after.Node(r.GetSpec().GetNodeUid()).GetStatus().GetState() == spec.NodeOffline; !offline && r.GetSpec().GetRevisionUid() != revision {
			outdated++
		}
	}
	if outdated > 0 && (len((Placement{}).Explain(after, uid)) > 0 || (Placement{}).ShortOfQuota(after, uid) != "") {
		pending += outdated
	}
	slices.Sort(nodes)
	slices.Sort(kept)
	return nodes, kept, pending
}

func TestForecastMatchesTheLoop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for i, name := range nodeNames {
			w.addNode(name, fmt.Sprint(2+2*i))
		}
		for _, s := range drawSteps(t) {
			w.take(s)
		}
		d := drive(w)
		d.rest()

		batch, workloads := w.drawEdit(t)
		d.wantAsForecast(batch, workloads)
		w.checkCapacity()
	})
}

// wantAsForecast forecasts some changes, makes them, and checks that the forecast comes
// true.
func (d *driven) wantAsForecast(batch *state.Batch, workloads []string) {
	d.t.Helper()
	before, untouched := d.snap(), d.saved()
	planned, preempted, err := (Placement{}).Forecast(d.now(), d.store.Fork(), batch.Transaction(d.now()), workloads)
	if err != nil {
		d.t.Fatalf("%v", err)
	}
	if !bytes.Equal(untouched, d.saved()) {
		d.t.Fatalf("the forecast has changed the world")
	}

	if batch.Len() > 0 {
		d.apply(batch)
	}
	d.rest()
	for i, uid := range workloads {
		wantNodes, wantKept, wantPending := real(before, d.snap(), uid)
		nodes, kept, pending := shown(planned[i])
		if !slices.Equal(nodes, wantNodes) || !slices.Equal(kept, wantKept) || pending != wantPending {
			d.t.Fatalf("workload %d was forecast on %v, keeping %v, with %d unplaced;\nit came to %v, keeping %v, with %d unplaced:\n%v",
				i, nodes, kept, pending, wantNodes, wantKept, wantPending, planned[i])
		}
		if pending > 0 && len(planned[i].GetUnplacedReasons()) == 0 && planned[i].GetQuota() == "" {
			d.t.Fatalf("%d replicas have no place, without a reason", pending)
		}
	}
	var foreseen, gone []string
	for _, p := range preempted {
		foreseen = append(foreseen, p.GetReplica())
	}
	for r := range d.snap().Replicas("", "") {
		if was := before.Replica(r.GetMetadata().GetUid()); was != nil && was.GetSpec().GetPreemptedFor() == "" && r.GetSpec().GetPreemptedFor() != "" {
			gone = append(gone, r.GetMetadata().GetName())
		}
	}
	slices.Sort(foreseen)
	if slices.Sort(gone); !slices.Equal(foreseen, gone) {
		d.t.Fatalf("%v were forecast to be preempted, and %v were", foreseen, gone)
	}
}

// Forecasts come true even with priorities, quotas, jobs, daemons and affinity rules.
func TestForecastComesTrueInAnyWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := anyNodes(t)
		w := d.world
		for range rapid.IntRange(1, 10).Draw(t, "actions") {
			anyAction(t, w)
			d.rest()
		}
		batch := &state.Batch{}
		if drafts := w.draft(func() { anyEdit(t, w) }); len(drafts) > 0 {
			batch = drafts[0]
		}
		var workloads []string
		for of := range w.snap().Workloads("", "") {
			workloads = append(workloads, of.GetMetadata().GetUid())
		}
		d.wantAsForecast(batch, workloads)
	})
}

// Replicas that wait for a place outside of a draining node get the room that a change makes.
func TestForecastKnowsWhatWaitsToLeaveANode(t *testing.T) {
	d := drive(newWorld(t))
	d.addNode("a", "1")
	d.addRanked("web", 1, "1", 300, 1)
	d.rest()
	d.addNode("b", "1")
	d.addRanked("full", 1, "1", 300, 1)
	d.rest()
	d.setNode("a", "draining")
	d.rest()
	d.addRanked("later", 1, "1", 100, 0)
	d.rest()
	d.wantWhere("web", "a running")
	d.wantWhere("later", " pending")
	larger := d.draft(func() { d.configure(&v1.ClusterSpec{Overcommit: &v1.Overcommit{Cpu: new(int32(200))}}) })[0]
	later := d.snap().WorkloadByName("default", "later").GetMetadata().GetUid()
	d.wantAsForecast(larger, []string{later})
}

func TestForecastPairsOldWithNewReplicas(t *testing.T) {
	d := drive(newWorld(t))
	d.addNode("n1", "4")
	d.addNode("n2", "4")
	d.addWorkload("web", 2, "1")
	d.rest()
	plan := func(edit func(*state.Batch, *v1.Workload)) *v1.PlanChange {
		t.Helper()
		w := proto.CloneOf(d.snap().WorkloadByName("default", "web"))
		var b state.Batch
		edit(&b, w)
		b.Update(w, w.GetMetadata().GetVersion())
		planned, _, err := (Placement{}).Forecast(d.now(), d.store.Fork(), b.Transaction(d.now()), []string{w.GetMetadata().GetUid()})
		if err != nil {
			t.Fatal(err)
		}
		return planned[0]
	}
	actions := func(p *v1.PlanChange) (all []string) {
		for _, s := range p.GetReplicas() {
			all = append(all, fmt.Sprintf("%s %s>%s", s.GetAction(), s.GetFromNode(), s.GetToNode()))
		}
		slices.Sort(all)
		return all
	}
	for name, test := range map[string]struct {
		edit func(*state.Batch, *v1.Workload)
		want []string
	}{
		"more":   {func(_ *state.Batch, w *v1.Workload) { w.Spec.Replicas = proto.Int32(3) }, []string{"create >n1", "keep n1>n1", "keep n2>n2"}},
		"fewer":  {func(_ *state.Batch, w *v1.Workload) { w.Spec.Replicas = proto.Int32(1) }, []string{"keep n1>n1", "stop n2>"}},
		"other":  {d.revise, []string{"replace n1>n1", "replace n2>n2"}},
		"delete": {func(_ *state.Batch, w *v1.Workload) { w.Metadata.DeleteTime = timestamppb.New(d.now()) }, []string{"stop n1>", "stop n2>"}},
		"elsewhere": {func(b *state.Batch, w *v1.Workload) {
			w.Spec.Placement = &v1.Placement{Labels: map[string]string{"name": "n1"}}
			d.revise(b, w)
		}, []string{"move n2>n1", "replace n1>n1"}},
	} {
		if got := actions(plan(test.edit)); !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
	huge := plan(func(b *state.Batch, w *v1.Workload) {
		w.Spec.Resources.Requests.Cpu = "9"
		d.revise(b, w)
	})
	if got := actions(huge); !slices.Equal(got, []string{"keep n1>n1", "keep n2>n2"}) || huge.GetUnplaced() != 2 || len(huge.GetUnplacedReasons()) != 2 {
		t.Errorf("what fits nowhere: %v", huge)
	}
}

// A forecast that would take too long says what changes, but not where.
func TestForecastIsBounded(t *testing.T) {
	w := newWorld(t)
	w.addNode("n1", "100000")
	made := newWorkload(w.newUID(), "web", 100*maxReplicas, "1")
	var b state.Batch
	w.revise(&b, made)
	b.Create(made)
	f := newForecast(w.now(), w.store.Fork())
	f.looks = 3*maxReplicas + 2*maxReplicas*changeCost // the second tick sees the first one's replicas and events
	if err := f.play(b.Transaction(w.now())); err != nil {
		t.Fatal(err)
	}
	placed, open := 0, 0
	for _, s := range f.outcome(w.snap(), made.GetMetadata().GetUid()).GetReplicas() {
		if s.GetToNode() == "" {
			open++
		} else {
			placed++
		}
	}
	if !f.cutShort || placed != 2*maxReplicas || open != 98*maxReplicas {
		t.Errorf("%d placed, %d open", placed, open)
	}
}

func BenchmarkForecastOfARollout(b *testing.B) {
	w := newWorld(b)
	for i := range 100 {
		w.addNode(fmt.Sprint("n", i), "1000")
	}
	for i := range 10 {
		w.addWorkload(fmt.Sprint("w", i), 200, "100m")
	}
	w.settle()
	for b.Loop() {
		edited := proto.CloneOf(w.snap().WorkloadByName("default", "w5"))
		var batch state.Batch
		w.revise(&batch, edited)
		batch.Update(edited, edited.GetMetadata().GetVersion())
		if _, _, err := (Placement{}).Forecast(w.now(), w.store.Fork(), batch.Transaction(w.now()), []string{edited.GetMetadata().GetUid()}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkForecastOfManyNewReplicas(b *testing.B) {
	w := newWorld(b)
	for i := range 100 {
		w.addNode(fmt.Sprint("n", i), "1000")
	}
	for b.Loop() {
		made := newWorkload(w.newUID(), "web", 100_000, "1m")
		var batch state.Batch
		w.revise(&batch, made)
		batch.Create(made)
		if _, _, err := (Placement{}).Forecast(w.now(), w.store.Fork(), batch.Transaction(w.now()), []string{made.GetMetadata().GetUid()}); err != nil {
			b.Fatal(err)
		}
	}
}

// A forecast counts the room of stopping replicas as free.
func TestForecastFreesRoomOfStoppingReplicas(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "2")
	w.addRanked("batch", 2, "1", 0, 0)
	d := drive(w)
	d.rest()
	w.scale("batch", 1)
	d.react() // one stops
	made := newWorkload(w.newUID(), "web", 1, "1")
	var b state.Batch
	w.revise(&b, made)
	b.Create(made)
	planned, preempted, err := Placement{}.Forecast(w.now(), w.store.Fork(), b.Transaction(w.now()), []string{made.GetMetadata().GetUid()})
	if err != nil || planned[0].GetUnplaced() != 0 || len(planned[0].GetReplicas()) != 1 || len(preempted) != 0 {
		t.Errorf("planned %v, preempted %v, %v", planned, preempted, err)
	}
}

// A change can help a waiting workload without freeing room: a replica becomes preemptible,
// or a neighbour appears. The forecast includes that.
func TestForecastIncludesWokenWorkloads(t *testing.T) {
	forecast := func(w *world, edit func(*state.Batch)) []*v1.Preemption {
		var b state.Batch
		edit(&b)
		_, preempted, err := (Placement{}).Forecast(w.now(), w.store.Fork(), b.Transaction(w.now()), nil)
		if err != nil {
			t.Fatal(err)
		}
		return preempted
	}

	w := newWorld(t)
	w.addNode("a", "1")
	w.addRanked("batch", 1, "1", 300, 0)
	d := drive(w)
	d.rest()
	w.addRanked("web", 1, "1", 200, 0)
	d.rest()
	preempted := forecast(w, func(b *state.Batch) {
		batch := proto.CloneOf(w.snap().WorkloadByName("default", "batch"))
		batch.Spec.Priority = proto.Int32(0)
		b.Update(batch, batch.GetMetadata().GetVersion())
	})
	if len(preempted) != 1 || preempted[0].GetWorkload() != "batch" || preempted[0].GetForWorkload() != "web" {
		t.Errorf("less important, it is preempted: %v", preempted)
	}

	w = newWorld(t)
	w.addNode("a", "2")
	d = drive(w)
	w.addRanked("batch", 1, "1", 0, 0)
	d.rest()
	near := newWorkload(w.newUID(), "near", 1, "1")
	near.Spec.Priority, near.Spec.Placement = proto.Int32(300), &v1.Placement{Affinity: []*v1.Affinity{{Workload: "db", Key: "node"}}}
	w.change(func(b *state.Batch) { w.revise(b, near); b.Create(near) })
	d.rest()
	preempted = forecast(w, func(b *state.Batch) {
		db := newWorkload(w.newUID(), "db", 1, "1")
		w.revise(b, db)
		b.Create(db)
	})
	if len(preempted) != 1 || preempted[0].GetWorkload() != "batch" || preempted[0].GetForWorkload() != "near" {
		t.Errorf("for one that has its neighbour now another is preempted: %v", preempted)
	}
}
