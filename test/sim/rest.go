package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// How long a healed cluster may take until everything is as it should be, and how often
// that is checked. A backlog of jobs may take longer: the time counts from the last end of
// one of their replicas.
const (
	restAtLeast = 12 * time.Minute
	restAtMost  = 2 * time.Hour
	workAtMost  = 24 * time.Hour
	restLook    = time.Minute
	// still is how long nothing may be written after that.
	still = 10 * time.Minute
)

// rest lets time pass after everything is healed, and checks the final invariants.
func (w *World) rest() {
	begin := w.now
	w.run(begin + restAtLeast)
	for w.failure == nil {
		wrong := w.amiss()
		if wrong == "" {
			wrong = w.underWay()
		}
		if wrong == "" {
			break
		}
		if w.now-max(begin, w.oracle.lastWork) > restAtMost || w.now-begin > workAtMost {
			w.fail("in the end everything is as desired", "%s after everything was healed: %s", w.now-begin, wrong)
			return
		}
		w.suspend(true) // one may have been created since
		w.finishDeployments()
		w.removeOrphans()
		w.run(w.now + restLook)
	}
	if w.failure != nil {
		return
	}
	w.note("everything is as desired")
	w.oracle.cloned = map[string]bool{}
	w.sameEverywhere()
	w.holdStill()
}

// holdStill checks that nothing is written when nothing happens, except for retention, and
// for scores, which time alone changes.
func (w *World) holdStill() {
	begin := w.now
	before, _ := w.written()
	for moves := -1; w.failure == nil && moves != w.oracle.moves; { // until nothing is moved any more
		if w.now-begin > movesEndWithin {
			w.fail("moves come to an end", "%s after everything was as desired, replicas are still moved", w.now-begin)
		}
		for w.failure == nil && w.underWay() != "" && w.now-begin <= movesEndWithin {
			w.run(w.now + restLook)
		}
		moves = w.oracle.moves
		before, _ = w.written()
		w.run(w.now + still)
	}
	if after, what := w.written(); after > before && w.failure == nil {
		w.fail("nothing is written when nothing happens", "%s at version %d, and nothing after %d should be", what, after, before)
	}
	if wrong := w.amiss(); wrong != "" {
		w.fail("a settled cluster stays settled", "%s", wrong)
	}
}

// written is the newest version of all objects, and the object that has it.
func (w *World) written() (newest uint64, what string) {
	snap := w.newest()
	look := func(kind state.Kind, o interface{ GetMetadata() *v1.Metadata }) {
		if v := o.GetMetadata().GetVersion(); v > newest {
			newest, what = v, fmt.Sprintf("%s %s", kind, o.GetMetadata().GetName())
		}
	}
	for n := range snap.Nodes("") {
		if w.oracle.scored[n.GetMetadata().GetUid()].version != n.GetMetadata().GetVersion() {
			look(state.KindNode, n)
		}
	}
	for one := range snap.Workloads("", "") {
		look(state.KindWorkload, one)
	}
	for d := range snap.Deployments("", "") {
		look(state.KindDeployment, d)
	}
	for r := range snap.Replicas("", "") {
		look(state.KindReplica, r)
	}
	for e := range snap.Events("") {
		look(state.KindEvent, e)
		break
	}
	return newest, what
}

// amiss is what is not as it should be, empty if all is well.
func (w *World) amiss() string {
	if w.leader == nil {
		return "there is no leader"
	}
	snap := w.leader.server.store.Snapshot()
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for n := range snap.Nodes("") {
		if !w.nodeWell(n) {
			add("node %s is %s", n.GetMetadata().GetName(), n.GetStatus().GetState())
		}
		w.drainAmiss(snap, n, add)
	}
	for one := range snap.Workloads("", "") {
		wrong = append(wrong, w.workloadAmiss(snap, one)...)
	}
	if s := w.leader.server; snap.Server(s.uid).GetSpec().GetAddress() != s.address {
		add("server %s is at %s, and the state says %q", s.name, s.address, snap.Server(s.uid).GetSpec().GetAddress())
	}
	for r := range snap.Replicas("", "") {
		if spec.Live(r.GetStatus().GetPhase()) && snap.Workload(r.GetSpec().GetWorkloadUid()) == nil {
			add("%s is left over and %s", r.GetMetadata().GetName(), r.GetStatus().GetPhase())
		}
	}
	for _, m := range w.machines {
		wrong = append(wrong, m.amiss(snap)...)
	}
	return strings.Join(wrong, "; ")
}

// underWay is what is not finished, empty if nothing is: something may be written a moment
// later.
func (w *World) underWay() string {
	t := w.leader
	switch {
	case len(t.flight) > 0:
		return "a proposal of " + t.flight[0].who + " is in flight"
	case t.writing || len(t.reports) > 0:
		return "reports are being written"
	case t.loops.dead || t.loops.replicas.busy || t.loops.nodes.busy || t.loops.crons.busy:
		return "a loop is at work"
	}
	snap := t.server.store.Snapshot()
	for r := range snap.Replicas("", "") {
		if spec.Serves(r) && !spec.Steady(r) && !placement.Away(snap, r) {
			return r.GetMetadata().GetName() + " has yet to prove itself"
		}
	}
	if moving := beingMoved(snap); len(moving) > 0 {
		return snap.Replica(moving[0]).GetMetadata().GetName() + " is being moved"
	}
	return ""
}

// nodeWell reports whether a node is what it should be when everything is healed.
func (w *World) nodeWell(n *v1.Node) bool {
	if m := w.machineOf(n.GetMetadata().GetUid()); m != nil && m.buried {
		return settledAway(n)
	}
	return n.GetStatus().GetState() == inService(n)
}

// workloadAmiss checks that a workload has as many replicas as it should, all of its
// current revision, and that pending ones have a reason.
func (w *World) workloadAmiss(snap *state.Snapshot, one *v1.Workload) (wrong []string) {
	name := one.GetMetadata().GetName()
	add := func(format string, args ...any) { wrong = append(wrong, name+": "+fmt.Sprintf(format, args...)) }
	if one.GetMetadata().GetDeleteTime() != nil {
		for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
			if spec.IsRelease(one) && placement.Away(snap, r) {
				return nil // the command may still run there
			}
		}
		add("is still being deleted")
		return wrong
	}
	if w.deploymentAmiss(snap, one, add); len(wrong) > 0 {
		return wrong
	}
	if one = target(snap, one); one == nil {
		return nil // it has no revision that may run
	}
	switch one.GetSpec().GetKind() {
	case spec.KindJob:
		w.jobAmiss(snap, one, add)
		return wrong
	case spec.KindDaemon:
		w.daemonAmiss(snap, one, add)
		return wrong
	case spec.KindCron:
		if !one.GetSpec().GetCron().GetSuspend() {
			add("is not suspended yet")
		}
		return wrong
	}
	revision := one.GetStatus().GetRevisionUid()
	policy := one.GetSpec().GetRestart().GetPolicy()
	done := len(w.oracle.done[revision])
	running, pending, outdated, away, leaving := 0, 0, 0, 0, 0
	var old []*v1.Replica
	for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
		phase := r.GetStatus().GetPhase()
		if wanted(r) && spec.Drains(snap.Node(r.GetSpec().GetNodeUid())) {
			leaving++
		}
		switch {
		case spec.Ended(phase):
		case wanted(r) && placement.Away(snap, r):
			away++ // it may still run there
		case !wanted(r):
			add("%s is still %s though it is not wanted", r.GetMetadata().GetName(), phase)
		case w.overstays(snap, r):
			add("%s is still on %s, which has a taint that it does not bear", r.GetMetadata().GetName(), r.GetSpec().GetNode())
		case w.outstays(snap, one, r):
			add("%s is still on %s, which drains, though there is room elsewhere", r.GetMetadata().GetName(), r.GetSpec().GetNode())
		case r.GetSpec().GetRevisionUid() != revision:
			outdated++
			old = append(old, r)
		case spec.Serves(r):
			running++
		case phase == spec.PhasePending:
			pending++
		default:
			add("%s is %s: %s", r.GetMetadata().GetName(), phase, r.GetStatus().GetUnready())
		}
	}
	w.scaleAmiss(snap, one, add)
	want := max(0, int(spec.Replicas(one))-done)
	if policy != "always" && running > 0 {
		add("its work is not done yet")
	}
	// Pending ones may be covers for those that are away, which may or may not run. Those on draining nodes make
	// up for none of them, and others may wait in their place.
	if here := running + pending + outdated; here > want+min(leaving, pending) || here+away < want || running+outdated-leaving+away > want {
		add("%d run, %d wait, %d are outdated, %d away, %d are wanted, %d have done their work", running, pending, outdated, away, want, done)
	}
	if away > 0 && w.fits(snap, one, "") {
		add("%d are on offline nodes though there is room elsewhere", away)
	}
	if pending > 0 && w.fits(snap, one, "") {
		add("%d wait though there is room", pending)
	}
	if pending > 0 && w.couldPush(snap, one) {
		add("%d wait though they could push others out", pending)
	}
	for _, r := range old {
		mayMakeRoom := running+outdated > int(one.GetSpec().GetMinAvailable())
		if pending == 0 && (policy == "always" && w.fits(snap, one, "") || mayMakeRoom && w.fits(snap, one, r.GetMetadata().GetUid())) {
			add("%s is outdated though there is room", r.GetMetadata().GetName())
		}
	}
	return wrong
}

// outstays reports whether a replica of a service is on a draining node although there is room elsewhere.
func (w *World) outstays(snap *state.Snapshot, one *v1.Workload, r *v1.Replica) bool {
	return spec.Drains(snap.Node(r.GetSpec().GetNodeUid())) && one.GetSpec().GetRestart().GetPolicy() == "always" && w.fits(snap, one, "")
}

// drainAmiss says why a draining node is not empty.
func (w *World) drainAmiss(snap *state.Snapshot, n *v1.Node, add func(string, ...any)) {
	drain, name := n.GetSpec().GetDrain(), n.GetMetadata().GetName()
	if !spec.Drains(n) || drain == nil {
		return
	}
	live, others := 0, 0
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if !spec.Live(r.GetStatus().GetPhase()) {
			continue
		}
		live++
		one := snap.Workload(r.GetSpec().GetWorkloadUid())
		if one.GetSpec().GetKind() != spec.KindDaemon {
			others++
		}
		if one.GetSpec().GetKind() == spec.KindJob && drain.GetDeadline() != nil && drain.GetDeadline().AsTime().Before(w.clock().Add(-time.Minute)) {
			add("%s is on %s, whose drain gave it time until %s", r.GetMetadata().GetName(), name, drain.GetDeadline().AsTime())
		}
	}
	switch {
	case live > 0 && others == 0:
		add("only daemons are on %s, and should leave it", name)
	case live == 0 && drain.GetEndTime() == nil:
		add("node %s is empty, and its drain has not ended", name)
	}
}

// fits reports whether some node would take one more replica of a workload, without one
// that would go.
func (w *World) fits(snap *state.Snapshot, one *v1.Workload, without string) bool {
	need, ok := w.needsOf(snap, one.GetStatus().GetRevisionUid())
	if !ok || !w.withinQuota(snap, one, need, without) {
		return false
	}
	for n := range snap.Nodes("") {
		if may(n, need) && w.hasRoom(snap, n, one, need, without) {
			return true
		}
	}
	return false
}

func (w *World) hasRoom(snap *state.Snapshot, n *v1.Node, one *v1.Workload, need needs, without string) bool {
	free := scheduler.NodeFromProto(n, spec.NodePolicy{}).Capacity
	for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
		if spec.Ended(r.GetStatus().GetPhase()) || r.GetMetadata().GetUid() == without {
			continue
		}
		other, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid())
		if !ok {
			continue
		}
		free[scheduler.CPU] -= other.Resources[scheduler.CPU]
		free[scheduler.Memory] -= other.Resources[scheduler.Memory]
		shared := other.SharePorts && need.SharePorts && r.GetSpec().GetWorkloadUid() == one.GetMetadata().GetUid()
		for _, port := range need.Ports {
			if slices.Contains(other.Ports, port) && !shared {
				return false
			}
		}
	}
	return need.Resources[scheduler.CPU] <= free[scheduler.CPU] && need.Resources[scheduler.Memory] <= free[scheduler.Memory]
}

// amiss checks that exactly the right programs run on a machine.
func (m *machine) amiss(snap *state.Snapshot) (wrong []string) {
	add := func(format string, args ...any) { wrong = append(wrong, m.name+": "+fmt.Sprintf(format, args...)) }
	if !m.on || !m.agent {
		return nil
	}
	for _, uid := range slices.Sorted(maps.Keys(m.tasks)) {
		r := snap.Replica(uid)
		if r.GetSpec().GetNodeUid() != m.uid || r.GetStatus().GetPhase() != spec.PhaseRunning || m.tasks[uid].exited {
			add("a program of %s runs, which is %s on %s", m.records[uid].nameOr(uid), r.GetStatus().GetPhase(), r.GetSpec().GetNode())
		}
	}
	for r := range snap.ReplicasOn(m.uid) {
		if r.GetStatus().GetPhase() == spec.PhaseRunning && m.tasks[r.GetMetadata().GetUid()] == nil {
			add("%s should run and does not", r.GetMetadata().GetName())
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(m.records)) {
		if r := snap.Replica(uid); r == nil || spec.Ended(r.GetStatus().GetPhase()) {
			add("%s is not forgotten", m.records[uid].name)
		}
	}
	return wrong
}
