package sim

import (
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// What must hold for deployments, and for everything that stops replicas on purpose.

// checkDeployment checks a deployment that has changed.
func (w *World) checkDeployment(p *proposal, before, d *v1.Deployment, after *state.Snapshot) {
	uid, name, phase := d.GetMetadata().GetUid(), d.GetMetadata().GetName(), d.GetStatus().GetPhase()
	one := after.Workload(d.GetSpec().GetWorkloadUid())
	if was := w.oracle.ended[uid]; was != "" && was != phase {
		w.fail("an ended deployment stays as it ended", "%s was %s and is %s", name, was, phase)
	}
	if one == nil {
		w.fail("a deployment belongs to a workload", "%s", name)
		return
	}
	if before.GetStatus().GetPhase() != phase {
		w.note("deployment %s of revision %d is %s: %s", name, d.GetSpec().GetRevision(), phase, d.GetStatus().GetReason())
	}
	if spec.DeploymentOpen(d) {
		if one.GetStatus().GetDeploymentUid() != uid {
			w.fail("only the newest deployment is open", "%s is %s, and %d is the newest", name, phase, one.GetStatus().GetDeployment())
		}
		if before.GetStatus().GetWaiting() && !d.GetStatus().GetWaiting() {
			w.checkBegun(p, before, one)
		}
		w.checkSwitch(p, before, d, one)
		w.checkCanary(p, before, d)
		return
	}
	w.checkSwitch(p, before, d, one)
	if w.oracle.ended[uid] != "" {
		return
	}
	w.oracle.ended[uid] = phase
	workload := one.GetMetadata().GetUid()
	switch phase {
	case spec.DeploymentSucceeded:
		w.checkSucceeded(p, d)
		if w.oracle.good[workload] == nil {
			w.oracle.good[workload] = map[uint64]string{}
		}
		w.oracle.good[workload][d.GetSpec().GetNumber()] = d.GetSpec().GetRevisionUid()
	case spec.DeploymentRolledBack:
		want := w.lastGood(workload, d)
		if got := one.GetStatus().GetRevisionUid(); want == "" || got != want {
			w.fail("a rollback returns to the last good revision", "%s of revision %d was rolled back to %d, want %s", name,
				d.GetSpec().GetRevision(), one.GetStatus().GetRevision(), want)
		}
	case spec.DeploymentFailed:
		if newest := one.GetStatus().GetDeploymentUid(); newest == uid && w.lastGood(workload, d) != "" {
			w.fail("a failed deployment is rolled back", "%s has failed (%s), and %s was good", name, d.GetStatus().GetReason(), w.lastGood(workload, d))
		}
	}
}

// lastGood is the revision of the newest deployment before one that succeeded, other than its own. The oracle has its own
// record of it.
func (w *World) lastGood(workload string, d *v1.Deployment) string {
	good := w.oracle.good[workload]
	for _, number := range slices.Backward(slices.Sorted(maps.Keys(good))) {
		if number < d.GetSpec().GetNumber() && good[number] != d.GetSpec().GetRevisionUid() {
			return good[number]
		}
	}
	return ""
}

// checkSucceeded checks that a deployment succeeds only when all replicas of a service have proven themselves.
func (w *World) checkSucceeded(p *proposal, d *v1.Deployment) {
	one := p.base.Workload(d.GetSpec().GetWorkloadUid())
	if one.GetSpec().GetKind() != "" || p.who != "replicas" {
		return
	}
	revision, steady := d.GetSpec().GetRevisionUid(), 0
	for r := range p.base.ReplicasOf(one.GetMetadata().GetUid()) {
		if r.GetSpec().GetRevisionUid() == revision && wanted(r) && spec.Steady(r) && !placement.Away(p.base, r) {
			steady++
		}
	}
	if want := int(spec.Replicas(one)) - len(w.oracle.done[revision]); steady < want {
		w.fail("a deployment succeeds when its replicas have proven themselves", "%s has %d of %d", d.GetMetadata().GetName(), steady, want)
	}
	if broken(p.base.Revision(revision).GetSpec().GetWorkload()) && spec.Replicas(one) > 0 {
		w.fail("a deployment succeeds when its replicas have proven themselves", "%s is broken", d.GetMetadata().GetName())
	}
}

// checkBegun checks that a deployment begins when the workloads that it depends on are ready and its release command has
// completed.
func (w *World) checkBegun(p *proposal, before *v1.Deployment, one *v1.Workload) {
	if p.base == nil || p.who != "replicas" {
		return
	}
	name := before.GetMetadata().GetName()
	if job := p.base.Workload(before.GetStatus().GetRelease().GetJobUid()); before.GetSpec().GetRelease() {
		if job.GetStatus().GetJob().GetOutcome() != spec.PhaseCompleted {
			w.fail("a release begins after its command has completed", "%s, and the job is %q", name, job.GetStatus().GetJob().GetOutcome())
		}
		return
	}
	seen := p.base.Workload(one.GetMetadata().GetUid())
	for on, need := range seen.GetSpec().GetDependsOn() {
		other := p.base.WorkloadByName(seen.GetMetadata().GetNamespace(), on)
		ready := placement.Serving(p.base, other) > 0 || spec.Asleep(other)
		if need == spec.DependsReady && !ready || need == spec.DependsCompleted && w.oracle.over[other.GetStatus().GetRevisionUid()] != spec.PhaseCompleted {
			w.fail("a deployment waits for what it depends on", "%s begins, and %s is not %s", name, on, need)
		}
	}
}

// checkSwitch checks that a blue-green deployment switches only to a set that serves.
func (w *World) checkSwitch(p *proposal, before, d *v1.Deployment, one *v1.Workload) {
	if before.GetStatus().GetSwitched() || !d.GetStatus().GetSwitched() || p.who != "replicas" {
		return
	}
	seen := p.base.Workload(one.GetMetadata().GetUid())
	serving := 0
	for r := range p.base.ReplicasOf(one.GetMetadata().GetUid()) {
		if r.GetSpec().GetRevisionUid() == d.GetSpec().GetRevisionUid() && wanted(r) && spec.Steady(r) && !placement.Away(p.base, r) {
			serving++
		}
	}
	if want := int(spec.Replicas(seen)) - len(w.oracle.done[d.GetSpec().GetRevisionUid()]); serving < want {
		w.fail("a service switches to a set that serves", "%s switches, and %d of %d serve", d.GetMetadata().GetName(), serving, want)
	}
	w.oracle.switched[one.GetMetadata().GetUid()] = d.GetSpec().GetRevisionUid()
}

// checkTraffic checks that the traffic of a blue-green workload goes to one set at a time, and before the switch of its
// newest deployment to the last good one.
func (w *World) checkTraffic(snap *state.Snapshot, one *v1.Workload) {
	d := snap.Deployment(one.GetStatus().GetDeploymentUid())
	if one.GetSpec().GetKind() != "" || d.GetSpec().GetPreviousUid() == "" || spec.DeploymentStrategy(d, one.GetSpec()) != spec.StrategyBlueGreen || one.GetMetadata().GetDeleteTime() != nil {
		return
	}
	want := d.GetSpec().GetPreviousUid()
	switch {
	case d.GetStatus().GetSwitched():
		want = d.GetSpec().GetRevisionUid()
	case d.GetStatus().GetPhase() == spec.DeploymentSucceeded: // it was of another strategy
		return
	}
	idle := services.Idle(snap, one)
	if w.flaw == Torn {
		idle = func(*v1.Replica) bool { return false }
	}
	for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
		if wanted(r) && spec.Serves(r) && !idle(r) && r.GetSpec().GetRevisionUid() != want {
			w.fail("traffic goes to one set", "%s of revision %d gets traffic, and that is for %s: %s of revision %d is %s", r.GetMetadata().GetName(),
				r.GetSpec().GetRevision(), want, d.GetMetadata().GetName(), d.GetSpec().GetRevision(), d.GetStatus().GetPhase())
		}
	}
}

// checkSize checks that a service never has more live replicas than desired and its surge allows, not counting those that
// stop, are away, or must leave their node. If its deployment waits no more, the surge of the new revision counts already.
func (w *World) checkSize(p *proposal, r *v1.Replica, one *v1.Workload, after *state.Snapshot) {
	begun := one
	if before := target(p.base, one); before != nil {
		one = before // the deployment waits
	}
	if one == nil || one.GetSpec().GetKind() != "" || recreates(p.base, one) {
		return
	}
	most := int(spec.Replicas(one)) + surgeOf(p.base, one)
	if !spec.Waits(begun, after.Deployment(begun.GetStatus().GetDeploymentUid())) {
		most = max(most, int(spec.Replicas(begun))+surgeOf(after, begun))
	}
	live := 0
	for other := range after.ReplicasOf(one.GetMetadata().GetUid()) {
		if wanted(other) && !placement.Away(p.base, other) && !w.mayGo(p, after, other) {
			live++
		}
	}
	if live > most {
		w.fail("an update stays within its surge", "%s is the %dth live one of %d", r.GetMetadata().GetName(), live, most)
	}
}

// checkDisruptions checks that a decision leaves every service its minAvailable, whatever it stops replicas for: an
// update, a drain, a preemption or a smaller number. It counts replicas that get traffic. Taints, forced drains and the
// preemption by a higher class may take more: what they take counts as left.
func (w *World) checkDisruptions(p *proposal) {
	if p.who != "replicas" {
		return
	}
	stopped, voluntary := map[string]bool{}, map[string]string{} // which can wait, and by workload the name of one of them
	for _, change := range p.made() {
		r := change.GetPut().GetReplica()
		old := p.base.Replica(r.GetMetadata().GetUid())
		if old == nil || !wanted(old) || r.GetSpec().GetDesired() != spec.DesiredStopped || !w.mayWait(p.base, r) {
			continue
		}
		stopped[r.GetMetadata().GetUid()] = true
		if spec.Serves(old) && !placement.Away(p.base, old) {
			voluntary[r.GetSpec().GetWorkloadUid()] = r.GetMetadata().GetName() + " " + r.GetSpec().GetStopReason()
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(voluntary)) {
		one := p.base.Workload(uid)
		if one == nil || one.GetSpec().GetKind() != "" || one.GetMetadata().GetDeleteTime() != nil || recreates(p.base, one) {
			continue
		}
		left, idle := 0, services.Idle(p.base, one)
		went := false
		for r := range p.base.ReplicasOf(uid) {
			if !wanted(r) || !spec.Serves(r) || placement.Away(p.base, r) || idle(r) {
				continue
			}
			if stopped[r.GetMetadata().GetUid()] {
				went = true
			} else {
				left++
			}
		}
		done := len(w.oracle.done[one.GetStatus().GetRevisionUid()])
		if d := p.base.Deployment(one.GetStatus().GetDeploymentUid()); spec.DeploymentOpen(d) { // it may wait
			done = max(done, len(w.oracle.done[d.GetSpec().GetPreviousUid()]))
		}
		want := int(spec.Replicas(one)) - done
		if keeps := min(int(one.GetSpec().GetMinAvailable()), want); went && left < keeps {
			w.fail("minAvailable holds against all disruptions", "%s goes, %d of %s are left, and %d should stay", voluntary[uid], left, one.GetMetadata().GetName(), keeps)
		}
	}
}

// mayWait reports whether the reason for which a replica is stopped can wait.
func (w *World) mayWait(snap *state.Snapshot, r *v1.Replica) bool {
	if by := r.GetSpec().GetPreemptedFor(); by != "" {
		waits := snap.Replica(by)
		return waits != nil && classOf(priorityOf(snap, r)) == classOf(priorityOf(snap, waits))
	}
	if r.GetSpec().GetStopReason() == "" {
		return true
	}
	if old := snap.Replica(r.GetMetadata().GetUid()); moverOf(snap, old) != nil && !w.mustLeave(snap, old) {
		return true
	}
	n := snap.Node(r.GetSpec().GetNodeUid())
	need, _ := w.needsOf(snap, r.GetSpec().GetRevisionUid())
	_, tainted := bears(n, need)
	// Work that ends by itself is stopped when the time of a drain is over, and starts again elsewhere.
	runsOn := snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetRestart().GetPolicy() == "always"
	return spec.Drains(n) && !n.GetSpec().GetDrain().GetForce() && !tainted && runsOn
}

// releaseAway reports whether a release command of a workload may still run on an offline node. No other one begins
// before that node is back or removed.
func releaseAway(snap *state.Snapshot, one *v1.Workload) bool {
	for d := range snap.DeploymentsOf(one.GetMetadata().GetUid()) {
		for r := range snap.ReplicasOf(d.GetStatus().GetRelease().GetJobUid()) {
			if spec.Live(r.GetStatus().GetPhase()) && placement.Away(snap, r) {
				return true
			}
		}
	}
	return false
}

// deploymentAmiss says why the newest deployment of a workload has not ended, empty if it has or waits for a reason.
func (w *World) deploymentAmiss(snap *state.Snapshot, one *v1.Workload, add func(string, ...any)) {
	d := snap.Deployment(one.GetStatus().GetDeploymentUid())
	if !spec.HasDeployments(one.GetSpec()) {
		return // a release job names that of its workload
	}
	if spec.DeploymentOpen(d) {
		waiting, _ := placement.Unmet(snap, one)
		job := snap.Workload(d.GetStatus().GetRelease().GetJobUid())
		// A server whose clock was ahead gave the job more time.
		patient := job != nil && snap.Revision(job.GetStatus().GetRevisionUid()).GetMetadata().GetCreateTime().AsTime().After(w.clock().Add(-time.Hour))
		if !d.GetStatus().GetWaiting() || waiting == "" && !patient && !releaseAway(snap, one) {
			add("deployment %d is still %s: %s", d.GetSpec().GetNumber(), d.GetStatus().GetPhase(), d.GetStatus().GetReason())
		}
		return
	}
	if broken(one.GetSpec()) && !spec.Waits(one, d) {
		add("is at revision %d, which does not work, after deployment %d, which is %s", one.GetStatus().GetRevision(), d.GetSpec().GetNumber(), d.GetStatus().GetPhase())
	}
	if d.GetSpec().GetGroup() == "" || d.GetStatus().GetPhase() != spec.DeploymentSucceeded || d.GetSpec().GetPreviousUid() == "" {
		return
	}
	for other := range snap.Deployments("", "") {
		newest := snap.Workload(other.GetSpec().GetWorkloadUid()).GetStatus().GetDeploymentUid() == other.GetMetadata().GetUid()
		ended := other.GetStatus().GetPhase() == spec.DeploymentFailed || other.GetStatus().GetPhase() == spec.DeploymentRolledBack
		if newest && ended && other.GetSpec().GetGroup() == d.GetSpec().GetGroup() && !other.GetSpec().GetAborted() {
			add("deployment %d has succeeded, and %s of the same group is %s", d.GetSpec().GetNumber(), other.GetMetadata().GetName(), other.GetStatus().GetPhase())
		}
	}
}

// Canary deployments: what operators ask for, the requests that revisions answer, and what must hold.

// anyCanary draws the steps of a canary and by what it is judged.
func anyCanary(c *rand.Rand) *v1.Canary {
	canary := &v1.Canary{
		Steps: [][]string{nil, {"5%"}, {"20%", "50%", "80%"}, {"10%", "99%"}}[c.IntN(4)],
		Bake:  []string{"", "0s", "10s", "1m"}[c.IntN(4)],
	}
	switch c.IntN(4) {
	case 0:
		canary.Analysis = &v1.CanaryAnalysis{MaxErrorRate: "1%"}
	case 1:
		canary.Analysis = &v1.CanaryAnalysis{MaxErrorRate: "0.5%", MaxP99: "500ms", MaxRestarts: proto.Int32(2), MinRequests: proto.Int32(20)}
	}
	return canary
}

// traffic is what revisions answer: ten requests a second each. A third of the revisions fail more often than they may, and a third are slow.
type traffic struct{ w *World }

func (t traffic) Revision(uid string, since time.Time) (requests, errors uint64, p99 time.Duration) {
	h := fnv.New64a()
	h.Write([]byte(uid))
	kind := h.Sum64() % 3
	requests = uint64(max(0, t.w.clock().Sub(since)) / (100 * time.Millisecond))
	if p99 = 100 * time.Millisecond; kind == 0 {
		p99 = time.Second
	}
	if kind == 1 {
		errors = requests / 20
	}
	return requests, errors, p99
}

// deploymentOf is the newest deployment of a workload as a proposal leaves it.
func (p *proposal) deploymentOf(one *v1.Workload) *v1.Deployment {
	uid := one.GetStatus().GetDeploymentUid()
	for _, change := range p.made() {
		if d := change.GetPut().GetDeployment(); d != nil && d.GetMetadata().GetUid() == uid {
			return d
		}
	}
	return p.base.Deployment(uid)
}

// baseOf is a workload at its last good revision, if that runs beside a canary; otherwise nil.
func (p *proposal) baseOf(one *v1.Workload) *v1.Workload {
	if one == nil || p.base == nil {
		return nil
	}
	d := p.deploymentOf(one)
	previous := p.base.Revision(d.GetSpec().GetPreviousUid())
	if s := previous.GetSpec().GetWorkload(); s.GetSingleton() || s.GetRestart().GetPolicy() != "always" {
		return nil
	}
	if !spec.CanaryStepping(d) || d.GetSpec().GetRevisionUid() != one.GetStatus().GetRevisionUid() {
		return nil
	}
	base := proto.CloneOf(one)
	spec.ReturnTo(base, previous)
	return base
}

// runningAs is a workload at the revision of a replica, if that runs beside a canary; otherwise the workload as it is.
func (p *proposal) runningAs(r *v1.Replica, one *v1.Workload) *v1.Workload {
	if base := p.baseOf(one); base != nil && r.GetSpec().GetRevisionUid() != one.GetStatus().GetRevisionUid() {
		return base
	}
	return one
}

// checkCanary checks a canary deployment that has changed: each step holds for as long as it should, with all its replicas,
// and is not passed by a revision that its requests speak against.
func (w *World) checkCanary(p *proposal, before, d *v1.Deployment) {
	if p.who != "replicas" || !spec.CanaryStepping(before) || before.GetStatus().GetStep() == d.GetStatus().GetStep() || before.GetStatus().GetStep() == 0 {
		return
	}
	name, steps := d.GetMetadata().GetName(), spec.StepsOf(spec.CanaryOf(d))
	one := p.base.Workload(d.GetSpec().GetWorkloadUid())
	want := int(spec.Replicas(one))
	promoted := before.GetSpec().GetPromotedStep()
	if int(promoted) > len(steps) || want == 0 || (&proposal{base: p.base, tx: &statev1.Transaction{}}).baseOf(one) == nil {
		return
	}
	step, status := before.GetStatus().GetStep(), before.GetStatus()
	if d.GetStatus().GetStep() != step+1 {
		w.fail("a step of a canary holds", "%s goes from step %d to step %d", name, step, d.GetStatus().GetStep())
	}
	canary, now := spec.CanaryOf(d), p.tx.GetTime().AsTime()
	// A step without a time holds and ends in one tick, if it need not hold for any time.
	since := now
	if status.GetStepTime() != nil {
		since = status.GetStepTime().AsTime()
	}
	if held := now.Sub(since); held < spec.BakeOf(canary) && promoted < step {
		w.fail("a step of a canary holds", "%s passes step %d after %s of %s", name, step, held, spec.BakeOf(canary))
	}
	steady := 0
	for r := range p.base.ReplicasOf(one.GetMetadata().GetUid()) {
		if r.GetSpec().GetRevisionUid() == d.GetSpec().GetRevisionUid() && wanted(r) && spec.Steady(r) && !placement.Away(p.base, r) {
			steady++
		}
	}
	if need := rollout.Canaries(want, steps[step-1]); steady < need {
		w.fail("a step of a canary holds", "%s passes step %d with %d of %d replicas", name, step, steady, need)
	}
	if status.GetStepTime() == nil {
		return
	}
	seen := rollout.Observed{Measured: true}
	seen.Requests, seen.Errors, seen.P99 = traffic{w}.Revision(d.GetSpec().GetRevisionUid(), since)
	if finding := rollout.Analyze(spec.AnalysisOf(canary), seen); finding != "" {
		w.fail("a canary is judged by its requests", "%s passes step %d, and %s", name, step, finding)
	}
}

// checkCanaries checks that a step has no more replicas than its share of the traffic needs.
func (w *World) checkCanaries(p *proposal, one *v1.Workload, r *v1.Replica, live int) {
	d := p.deploymentOf(one)
	if p.baseOf(one) == nil || r.GetSpec().GetRevisionUid() != d.GetSpec().GetRevisionUid() {
		return
	}
	share := spec.StepsOf(spec.CanaryOf(d))[max(1, d.GetStatus().GetStep())-1]
	if most := rollout.Canaries(int(spec.Replicas(one)), share); live > most {
		w.fail("a canary has as many replicas as its share needs", "%s is made, the %dth living one of %d", r.GetMetadata().GetName(), live, most)
	}
}
