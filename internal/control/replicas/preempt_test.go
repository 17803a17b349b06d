package replicas

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// checkPreemptions checks the preemptions since a snapshot: the preemptor's priority is
// above 100 and above the victim's, and services of the same class keep their minAvailable.
func (w *world) checkPreemptions(before *state.Snapshot) {
	w.t.Helper()
	snap := w.snap()
	for r := range snap.Replicas("", "") {
		if r.GetSpec().GetPreemptedFor() == "" || before.Replica(r.GetMetadata().GetUid()).GetSpec().GetPreemptedFor() != "" {
			continue
		}
		by := snap.Replica(r.GetSpec().GetPreemptedFor())
		mine, other := int(placement.PriorityOf(snap, r)), int(placement.PriorityOf(snap, by))
		if other <= 100 || mine >= other {
			w.t.Fatalf("%s of priority %d is preempted for %s of %d", r.GetMetadata().GetName(), mine, by.GetMetadata().GetName(), other)
		}
		if by.GetSpec().GetReservedNodeUid() != r.GetSpec().GetNodeUid() {
			w.t.Fatalf("%s leaves %s for %s, which waits for room on %q", r.GetMetadata().GetName(), r.GetSpec().GetNode(),
				by.GetMetadata().GetName(), by.GetSpec().GetReservedNodeUid())
		}
		w.checkAvailable(before, r, mine, other)
	}
}

// checkAvailable: a service keeps its minAvailable, unless the class differs.
func (w *world) checkAvailable(before *state.Snapshot, gone *v1.Replica, mine, other int) {
	w.t.Helper()
	was, is := 0, 0
	for r := range before.ReplicasOf(gone.GetSpec().GetWorkloadUid()) {
		if placement.Wanted(r) && r.GetStatus().GetPhase() == spec.PhaseRunning && !placement.Away(before, r) {
			was++
			if placement.Wanted(w.snap().Replica(r.GetMetadata().GetUid())) {
				is++
			}
		}
	}
	of := w.snap().Workload(gone.GetSpec().GetWorkloadUid()).GetSpec()
	sameClass := mine > 100 && other <= 500 || mine > 500 && other <= 900
	if sameClass && is < was && is < int(of.GetMinAvailable()) {
		w.t.Fatalf("%s is preempted, and of %d that run %d are left, but %d are to stay", gone.GetMetadata().GetName(), was, is, of.GetMinAvailable())
	}
}

// checkHeld: a replica that has waited for room since a snapshot gets it when those leaving
// have ended.
func (w *world) checkHeld(before *state.Snapshot) {
	w.t.Helper()
	snap := w.snap()
	c := newCluster(snap)
	held := map[string][]string{}
	for r := range snap.ReplicasOn("") {
		if at := r.GetSpec().GetReservedNodeUid(); at != "" && before.Replica(r.GetMetadata().GetUid()).GetSpec().GetReservedNodeUid() != at {
			held[r.GetSpec().GetRevisionUid()] = append(held[r.GetSpec().GetRevisionUid()], r.GetMetadata().GetUid())
		}
	}
	var request scheduler.Request
	for _, uid := range slices.Sorted(maps.Keys(held)) {
		revision, err := c.Revision(snap, uid)
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		request.Asks = append(request.Asks, scheduler.Ask{Revision: revision, Held: held[uid]})
	}
	if plan := c.View.Plan(request); len(plan.Preemptions)+len(plan.Unplaced) > 0 {
		w.t.Fatalf("room is made in vain: %+v", plan)
	}
}

// full is a world with one node that batch fills.
func full(t *testing.T) *driven {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("batch", 4, "1", 0, 0)
	d := drive(w)
	d.rest()
	w.wantWhere("batch", "a running", "a running", "a running", "a running")
	return d
}

// messagesOf lists the messages of events with a reason about replicas.
func (w *world) messagesOf(reason string) (messages []string) {
	for e := range w.snap().Events("") {
		if e.GetSpec().GetReason() == reason {
			messages = append(messages, e.GetSpec().GetMessage())
		}
	}
	return messages
}

func (w *world) of(name string) []*v1.Replica {
	return placement.ByUID(w.snap(), w.snap().WorkloadByName("default", name).GetMetadata().GetUid())
}

// going counts replicas that are stopping and have not ended.
func (w *world) going() (n int) {
	for r := range w.snap().Replicas("", "") {
		if spec.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetDesired() == spec.DesiredStopped {
			n++
		}
	}
	return n
}

func TestHigherPriorityPreempts(t *testing.T) {
	d := full(t)
	d.addRanked("web", 2, "1", 500, 0)
	d.react()
	d.wantWhere("web", " pending", " pending")
	for _, r := range d.of("web") {
		if !strings.HasPrefix(r.GetStatus().GetReason(), "waits for ") || !strings.HasSuffix(r.GetStatus().GetReason(), "of batch to end on node a") {
			t.Errorf("web waits because %q", r.GetStatus().GetReason())
		}
	}
	if d.going() != 2 {
		t.Fatalf("%d replicas are stopping", d.going())
	}
	for _, r := range d.of("batch") {
		if r.GetSpec().GetDesired() != spec.DesiredStopped {
			continue
		}
		if want := "makes room on node a for " + d.snap().Replica(r.GetSpec().GetPreemptedFor()).GetMetadata().GetName() + " of priority 500; its own is 0"; r.GetStatus().GetReason() != want || r.GetSpec().GetStopReason() != want {
			t.Errorf("the one that goes says %q", r.GetStatus().GetReason())
		}
	}
	if got := d.messagesOf("Preempted"); len(got) != 2 {
		t.Errorf("events tell %q", got)
	}
	// Their replacements wait.
	if got := d.phases("batch"); got[spec.PhasePending] != 2 {
		t.Errorf("batch is %v", got)
	}
	if why := (Placement{}).Explain(d.snap(), d.of("web")[0].GetSpec().GetWorkloadUid()); len(why) != 0 {
		t.Errorf("what has its room coming is explained by %v", why)
	}
	if got := d.explained("web", "", false).GetReplicas(); len(got) != 1 || got[0].GetReason() != "room is being made for 2 on a" {
		t.Errorf("those that wait are explained by %v", got)
	}
	if got := (Placement{}).Pending(d.snap()); got["preemption"] != 2 || got["fit"] != 2 {
		t.Errorf("pending are %v", got)
	}
	d.rest()
	d.wantWhere("web", "a running", "a running")
	d.wantWhere("batch", " pending", " pending", "a running", "a running")
	if got := d.messagesOf("Preempted"); len(got) != 2 {
		t.Errorf("in the end events tell %q", got)
	}
	for _, r := range d.of("web") {
		if r.GetSpec().GetReservedNodeUid() != "" || r.GetStatus().GetReason() != "" {
			t.Errorf("it still holds room: %v", r)
		}
	}
}

func TestPriorityTooLowToPreempt(t *testing.T) {
	for what, priorities := range map[string][2]int32{"what is usual": {0, 100}, "an equal one": {300, 300}, "a lower one": {300, 200}} {
		w := newWorld(t)
		w.addNode("a", "2")
		w.addRanked("first", 2, "1", priorities[0], 0)
		d := drive(w)
		d.rest()
		d.addRanked("second", 1, "1", priorities[1], 0)
		d.rest()
		d.wantWhere("second", " pending")
		if d.going() != 0 {
			t.Errorf("%s pushes others out", what)
		}
	}
}

// Until all victims have ended, no other replica gets the room that they leave.
func TestRoomIsReservedDuringPreemption(t *testing.T) {
	d := full(t)
	d.addRanked("web", 1, "3", 500, 0)
	d.react()
	if d.going() != 3 {
		t.Fatalf("%d replicas are stopping", d.going())
	}
	d.addRanked("same", 1, "1", 500, 2)
	d.react()
	d.addWorkload("usual", 1, "1")
	d.react()
	for range 3 { // they end one after the other
		for _, old := range d.of("batch") {
			if spec.Live(old.GetStatus().GetPhase()) && old.GetSpec().GetPreemptedFor() == d.of("web")[0].GetMetadata().GetUid() {
				r := proto.CloneOf(old)
				r.Status.Phase = spec.PhaseStopped
				d.change(func(b *state.Batch) { b.Update(r, old.GetMetadata().GetVersion()) })
				break
			}
		}
		d.wantWhere("usual", " pending")
		d.react()
		d.checkCapacity()
	}
	d.wantWhere("web", "a placed")
	d.rest()
	d.wantWhere("same", "a running") // the fourth of batch went for it
	d.wantWhere("usual", " pending")
	if got := len(d.messagesOf("Preempted")); got != 4 {
		t.Errorf("%d were preempted", got)
	}
}

func TestPlanAdaptsWhenRoomTurnsUpElsewhere(t *testing.T) {
	d := full(t)
	d.addRanked("web", 1, "2", 500, 0)
	d.react()
	if d.going() != 2 {
		t.Fatalf("%d replicas are stopping", d.going())
	}
	d.addNode("b", "2")
	d.react()
	d.wantWhere("web", "b placed")
	d.rest()
	// The replica that had begun to end has its place again.
	d.wantWhere("batch", "a running", "a running", "a running", "a running")
	if got := len(d.messagesOf("Preempted")); got != 2 {
		t.Errorf("%d were preempted", got)
	}
}

func TestPreemptionMovesWhenTheNodeIsLost(t *testing.T) {
	d := full(t)
	d.addNode("b", "4")
	d.scale("batch", 8)
	d.rest()
	d.addRanked("web", 1, "2", 500, 0)
	d.react()
	first := d.snap().Node(d.of("web")[0].GetSpec().GetReservedNodeUid()).GetMetadata().GetName()
	d.setNode(first, "offline")
	d.rest()
	second := map[string]string{"a": "b", "b": "a"}[first]
	d.wantWhere("web", second+" running")
}

// A new leader resumes the preemption.
func TestNewLeaderPreemptsNoFurtherReplicas(t *testing.T) {
	d := full(t)
	d.addRanked("web", 2, "1", 500, 0)
	d.react()
	next := drive(d.world)
	if d.going() != 2 {
		t.Fatalf("%d replicas are stopping", d.going())
	}
	next.rest()
	next.wantWhere("web", "a running", "a running")
	if got := len(next.messagesOf("Preempted")); got != 2 {
		t.Errorf("%d were preempted", got)
	}
}

func TestHigherPriorityTakesReservedRoom(t *testing.T) {
	d := full(t)
	d.addRanked("web", 1, "4", 300, 0)
	d.react()
	d.addRanked("core", 1, "4", 600, 0)
	d.react()
	if d.going() != 4 {
		t.Fatalf("%d replicas are stopping", d.going())
	}
	d.rest()
	d.wantWhere("core", "a running")
	d.wantWhere("web", " pending")
	if why := d.of("web")[0].GetStatus().GetReason(); !strings.Contains(why, "is for core-") && !strings.Contains(why, "cannot be placed") {
		t.Errorf("web waits because %q", why)
	}
}

func TestServiceKeepsMinAvailable(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("service", 4, "1", 200, 3)
	d := drive(w)
	d.rest()
	d.addRanked("web", 2, "1", 300, 0)
	d.rest()
	d.wantWhere("service", " pending", "a running", "a running", "a running")
	d.wantWhere("web", " pending", "a running")
	d.addRanked("core", 2, "1", 600, 0) // of another class
	d.rest()
	d.wantWhere("core", "a running", "a running")
}

// Replicas that are scaled down in the same tick are waited for instead of preempting
// others.
func TestScaledDownReplicasAreWaitedFor(t *testing.T) {
	d := full(t)
	d.scale("batch", 2)
	d.addRanked("web", 2, "1", 500, 0)
	d.rest()
	d.wantWhere("web", "a running", "a running")
	d.wantWhere("batch", "a running", "a running")
	if got := d.messagesOf("Preempted"); len(got) != 0 {
		t.Errorf("events tell %q", got)
	}
}

// The plan shows the preemptions before they happen.
func TestForecastShowsPreemptions(t *testing.T) {
	d := full(t)
	d.addNode("b", "1")
	made := newWorkload(d.newUID(), "web", 3, "1")
	made.Spec.Priority = proto.Int32(500)
	var b state.Batch
	d.revise(&b, made)
	b.Create(made)
	planned, preempted, err := (Placement{}).Forecast(d.now(), d.store.Fork(), b.Transaction(d.now()), []string{made.GetMetadata().GetUid()})
	if err != nil {
		t.Fatal(err)
	}
	if nodes, _, pending := shown(planned[0]); fmt.Sprint(nodes) != "[a a b]" || pending != 0 {
		t.Errorf("shown on %v", nodes)
	}
	before := map[string]bool{}
	for _, p := range preempted {
		before[p.GetReplica()] = true
		if p.GetWorkload() != "batch" || p.GetNode() != "a" || p.Priority == nil || p.GetPriority() != 0 || p.GetForWorkload() != "web" || p.GetForPriority() != 500 || p.GetToNode() != "" {
			t.Errorf("shown is %v", p)
		}
	}
	d.apply(&b)
	d.rest()
	gone := map[string]bool{}
	for _, r := range d.of("batch") {
		if r.GetSpec().GetPreemptedFor() != "" {
			gone[r.GetMetadata().GetName()] = true
		}
	}
	if !maps.Equal(before, gone) || len(gone) != 2 {
		t.Errorf("%v were shown and %v went", before, gone)
	}
}

// A new workload takes nothing from those of the same or a higher priority: they have no
// more pending replicas than before.
func TestNewWorkloadNeverDisplacesHigherPriorities(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for i, name := range nodeNames {
			w.addNode(name, fmt.Sprint(2+2*i))
		}
		for _, s := range drawSteps(t) {
			w.take(s)
		}
		for _, name := range nodeNames {
			w.setNode(name, "ready")
			w.taint(name)
		}
		d := drive(w)
		d.rest()
		priority := rapid.SampledFrom([]int32{0, 100, 200, 300, 600}).Draw(t, "priority of the newcomer")
		waiting := func() map[string]int {
			counts := map[string]int{}
			for r := range w.snap().ReplicasOn("") {
				if placement.Wanted(r) && placement.PriorityOf(w.snap(), r) >= priority {
					counts[r.GetSpec().GetWorkload()]++
				}
			}
			return counts
		}
		before, start := waiting(), w.snap()
		w.addRanked("newcomer", rapid.Int32Range(1, 6).Draw(t, "replicas"), rapid.SampledFrom([]string{"500m", "1", "3"}).Draw(t, "cpu"), priority, 0)
		for range 10_000 {
			d.react()
			w.checkPreemptions(start)
			start = w.snap()
			if !w.work() {
				break
			}
		}
		for name, count := range waiting() {
			if name != "newcomer" && count > before[name] {
				t.Fatalf("%d of %s wait, and %d did before", count, name, before[name])
			}
		}
		w.checkCapacity()
		w.checkSettled()
	})
}

// A replica that is stopped for its successor can be preempted in the same tick. Then the
// preemptor gets its room, and the successor waits.
func TestPreemptorGetsTheRoomOfAnOutdatedReplica(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "4")
	w.addRanked("batch", 1, "4", 100, 0)
	w.tick()
	w.work()
	w.work() // it runs
	w.restart("batch")
	w.addRanked("web", 1, "1", 200, 0)
	w.tickCarefully()
	old, web := w.of("batch")[0], w.of("web")[0]
	if got := old.GetSpec().GetPreemptedFor(); got != web.GetMetadata().GetUid() {
		t.Errorf("the room is made for %q", got)
	}
	if web.GetSpec().GetReservedNodeUid() != old.GetSpec().GetNodeUid() {
		t.Errorf("web waits because %q", web.GetStatus().GetReason())
	}
}

// The current minAvailable counts. Changing it replaces nothing, and lets waiting
// preemptors go on at once.
func TestCurrentMinAvailableCounts(t *testing.T) {
	w := newWorld(t)
	w.addNode("a", "1")
	w.addNode("b", "1")
	w.addRanked("web", 2, "1", 200, 2)
	d := drive(w)
	d.rest()
	w.addRanked("boss", 1, "1", 300, 0)
	d.rest()
	w.wantWhere("boss", " pending")
	keep := func(n int32) {
		w.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = n })
	}
	keep(1)
	d.rest()
	if all, _ := w.running("boss"); all != 1 {
		t.Errorf("%d of boss run", all)
	}
	if all, _ := w.running("web"); all != 1 {
		t.Errorf("%d of web run", all)
	}
	keep(2)
	w.addRanked("other", 1, "1", 400, 0)
	d.rest()
	if all, _ := w.running("web"); all != 1 {
		t.Errorf("%d of web run: it is to keep 2", all)
	}
}

// A service whose minAvailable rises before the commit of a preemption keeps its replicas.
func TestMinAvailableHoldsAtTheCommit(t *testing.T) {
	m := &racingLog{driven: drive(newWorld(t))}
	m.addNode("a", "2")
	m.addRanked("web", 2, "1", 200, 0)
	m.rest()
	m.loop.Proposer = m
	m.before = append(m.before, func() {
		m.edit("web", func(_ *state.Batch, of *v1.Workload) { of.Spec.MinAvailable = 2 })
	})
	m.addRanked("boss", 1, "1", 300, 0)
	m.rest()
	if all, _ := m.running("web"); all != 2 || m.tried < 2 {
		t.Errorf("%d of web run after %d tries: it is to keep 2", all, m.tried)
	}
}

// A service keeps its minAvailable even if it loses a node between plan and commit.
func TestLossBeforeTheCommitSparesTheLastReplica(t *testing.T) {
	for _, lost := range []string{"a", "b"} { // one has the victim, the other the replica that stays
		t.Run(lost, func(t *testing.T) {
			m := &racingLog{driven: drive(newWorld(t))}
			m.addNode("a", "1")
			m.addNode("b", "1")
			m.addRanked("web", 2, "1", 200, 1)
			m.rest()
			m.loop.Proposer = m
			m.before = append(m.before, func() {
				m.editNode(lost, func(n *v1.Node) { n.Status.State = spec.NodeOffline })
			})
			m.addRanked("boss", 1, "1", 300, 0)
			m.rest()
			left := 0
			for _, r := range m.of("web") {
				if placement.Wanted(r) && r.GetStatus().GetPhase() == spec.PhaseRunning && !placement.Away(m.snap(), r) {
					left++
				}
			}
			if left != 1 {
				t.Errorf("%d replicas of web are left, want 1", left)
			}
		})
	}
}

// The current priority counts. Changing it replaces nothing, and it applies to running and
// waiting replicas, and at the commit.
func TestCurrentPriorityCounts(t *testing.T) {
	m := &racingLog{driven: drive(newWorld(t))}
	m.addNode("a", "1")
	m.addRanked("web", 1, "1", 200, 0)
	m.rest()
	rank := func(name string, priority int32) {
		m.edit(name, func(_ *state.Batch, of *v1.Workload) { of.Spec.Priority = &priority })
	}
	runs := func(name string) (uid string) {
		for r := range m.snap().ReplicasOf(m.snap().WorkloadByName("default", name).GetMetadata().GetUid()) {
			if r.GetStatus().GetPhase() == spec.PhaseRunning {
				uid = r.GetMetadata().GetUid()
			}
		}
		return uid
	}
	first := runs("web")
	m.addRanked("boss", 1, "1", 200, 0)
	m.rest()
	rank("web", 300)
	m.rest()
	if runs("web") != first {
		t.Error("web is replaced for another priority")
	}
	m.loop.Proposer = m
	m.before = append(m.before, func() { rank("web", 500) })
	rank("boss", 400) // web is more important by the time of the commit
	m.rest()
	if runs("web") != first || m.tried == 0 {
		t.Errorf("web, which is more important, is preempted after %d tries", m.tried)
	}
	rank("boss", 501)
	m.rest()
	if runs("boss") == "" || runs("web") != "" {
		t.Error("boss, which is more important now, does not run")
	}
}

// An outdated replica that is being replaced no longer serves: a service under update keeps
// its minAvailable even if a preemption happens in the same tick.
func TestUpdateAndPreemptionTogetherKeepMinAvailable(t *testing.T) {
	for _, node := range nodeNames {
		w := newWorld(t)
		for _, name := range nodeNames {
			w.addNode(name, "1")
		}
		w.addRanked("web", 3, "1", 200, 2)
		d := drive(w)
		d.rest()
		w.restart("web")
		boss := newWorkload(w.newUID(), "boss", 1, "1")
		boss.Spec.Priority, boss.Spec.Placement = proto.Int32(300), &v1.Placement{Labels: map[string]string{"name": node}}
		w.change(func(b *state.Batch) { w.revise(b, boss); b.Create(boss) })
		d.react()
		if going := w.going(); going != 1 {
			t.Errorf("boss needs %s: %d of 3 stop at once, and 2 must stay", node, going)
		}
		d.rest()
		if all, _ := w.running("boss"); all != 1 {
			t.Errorf("boss does not run on %s: %v", node, w.where("boss"))
		}
	}
}
