package replicas

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A canary deployment goes by steps. When all replicas of a step have proven themselves, the new revision gets the step's
// share of the traffic, and the step must hold for a while. Whatever speaks against the new revision takes it back at once.
//
//	step 1: start replicas ──▶ share the traffic, hold ──▶ step 2 … ──▶ after the last step: a rolling update of the rest
//	              │                        │                                   │
//	              └────────────────────────┴──────────── finding ──────────────┴──▶ rolled back
//
// The last good revision is a whole service meanwhile, which replaces the replicas that it loses. The step and since when it
// holds are stored, because the next leader must not begin to count again.

// Traffic counts the requests that revisions answer. It does not block.
type Traffic interface {
	// Revision is what a revision has answered since a time: how many requests, how many of them failed, and how long 99 of
	// 100 took.
	Revision(uid string, since time.Time) (requests, errors uint64, p99 time.Duration)
}

// trafficEvery is how often the requests of a canary are judged.
const trafficEvery = time.Second

// canary takes a canary deployment one step further, or back.
func (t *tick) canary(w *v1.Workload, d *v1.Deployment, want int, replicas []rollout.Replica) (rolledBack bool) {
	seen := t.observe(w, d, replicas)
	limits := spec.AnalysisOf(spec.CanaryOf(d))
	if finding := rollout.Analyze(limits, seen); finding != "" {
		return t.fail(w, d, finding)
	}
	status, steps := d.GetStatus(), spec.StepsOf(spec.CanaryOf(d))
	status.Step = max(1, status.GetStep())
	alone := want == 0 || t.baseOf(w) == nil // there is nothing to share with
	if int(status.GetStep()) <= len(steps) && (alone || int(d.GetSpec().GetPromotedStep()) > len(steps)) {
		t.endSteps(d, len(steps))
	}
	if int(status.GetStep()) > len(steps) {
		return t.judgeOnTheWay(w, d, limits, rollout.ProgressOf(w.GetStatus().GetRevisionUid(), w.GetSpec(), want, replicas))
	}
	share := steps[status.GetStep()-1]
	p := rollout.ProgressOf(w.GetStatus().GetRevisionUid(), w.GetSpec(), rollout.Canaries(want, share), replicas)
	if p.Outdated = 0; !p.Complete() {
		return t.judgeOnTheWay(w, d, limits, p)
	}
	status.Progress = nil // from here on it waits for time to pass, and that is not time without progress
	if status.GetStepTime() == nil {
		status.StepTime, status.Weight = timestamppb.New(t.now), int32(share)
		t.event(w, "CanaryStep", fmt.Sprintf("deployment %d: revision %d gets %d%% of the traffic; step %d of %d holds for %s",
			d.GetSpec().GetNumber(), d.GetSpec().GetRevision(), share, status.GetStep(), len(steps), spec.FormatDuration(spec.BakeOf(spec.CanaryOf(d)))), state.SeverityInfo)
	}
	status.Analysis = rollout.Judged(limits, t.cluster.traffic != nil, seen.Requests >= limits.MinRequests)
	if at := t.heldAt(d); t.now.Before(at) {
		t.lookAgain(w, limits, at)
		return false
	}
	t.event(w, "CanaryHeld", fmt.Sprintf("deployment %d: step %d of %d has held%s", d.GetSpec().GetNumber(), status.GetStep(), len(steps), figures(seen)), state.SeverityInfo)
	t.endSteps(d, int(status.GetStep()))
	return false
}

// judgeOnTheWay judges a deployment while replicas of the next step, or of the rest, start. Those of the steps before get their
// share of the traffic meanwhile, so its requests are looked at.
func (t *tick) judgeOnTheWay(w *v1.Workload, d *v1.Deployment, limits spec.Analysis, p rollout.Progress) (rolledBack bool) {
	if t.judge(w, d, p) {
		return true
	}
	if d.GetStatus().GetWeight() > 0 && spec.DeploymentOpen(d) && t.judgesRequests(limits) {
		t.later(w.GetMetadata().GetUid(), t.now.Add(trafficEvery))
	}
	return false
}

func (t *tick) judgesRequests(limits spec.Analysis) bool {
	return t.cluster.traffic != nil && (limits.JudgesErrors || limits.JudgesP99)
}

// endSteps ends the steps of a canary deployment up to one.
func (t *tick) endSteps(d *v1.Deployment, step int) {
	d.Status.Step, d.Status.StepTime, d.Status.Progress = int32(step+1), nil, nil
	t.left.Workloads[d.GetSpec().GetWorkloadUid()] = true
}

// heldAt is when the present step of a canary deployment has held for long enough.
func (t *tick) heldAt(d *v1.Deployment) time.Time {
	bake := spec.BakeOf(spec.CanaryOf(d))
	if t.cluster.foreseeing || d.GetSpec().GetPromotedStep() >= d.GetStatus().GetStep() {
		return t.now
	}
	if since := d.GetStatus().GetStepTime().AsTime(); since.After(t.now) && !t.plausible(since, bake) {
		d.Status.StepTime = timestamppb.New(t.now)
	}
	return d.GetStatus().GetStepTime().AsTime().Add(bake)
}

// lookAgain makes a workload due when its step has held, and before that to judge its requests.
func (t *tick) lookAgain(w *v1.Workload, limits spec.Analysis, at time.Time) {
	if next := t.now.Add(trafficEvery); t.judgesRequests(limits) && next.Before(at) {
		at = next
	}
	t.later(w.GetMetadata().GetUid(), at)
}

// observe collects what is known of the new revision. Probes are judged while a step holds: before, some of its replicas are
// still starting. Requests are judged from the beginning of the step on; on the way to the next one, since the last progress.
func (t *tick) observe(w *v1.Workload, d *v1.Deployment, replicas []rollout.Replica) (o rollout.Observed) {
	revision, worst := d.GetSpec().GetRevisionUid(), ""
	if o.Restarts, worst = rollout.Restarts(revision, replicas); worst != "" {
		o.Restarted = restartOf(t.snap.Replica(worst))
	}
	since := d.GetStatus().GetStepTime()
	switch status := d.GetStatus(); {
	case since != nil:
		o.Failing = t.failing(w, revision, since.AsTime())
	case status.GetWeight() == 0 || status.Progress == nil:
		return o
	default:
		since = status.GetProgressTime()
	}
	if t.cluster.traffic != nil {
		o.Measured = true
		o.Requests, o.Errors, o.P99 = t.cluster.traffic.Revision(revision, since.AsTime())
	}
	return o
}

// restartOf says which replica has restarted, and why.
func restartOf(r *v1.Replica) string {
	status := r.GetStatus()
	why := spec.ExitReason(status.GetLastExit())
	if status.GetPhase() == spec.PhaseBackoff {
		why = cmp.Or(status.GetReason(), why)
	}
	if why == "" {
		why = "exit code " + strconv.Itoa(int(status.GetLastExit().GetCode()))
	}
	return r.GetMetadata().GetName() + ": " + why
}

// failing says which replica of a revision has served in the present step and does not any more, although its program
// runs. One that was created or restarted since is still on its way; the deadline of the deployment is for that.
func (t *tick) failing(w *v1.Workload, revision string, since time.Time) string {
	for _, r := range placement.ByUID(t.snap, w.GetMetadata().GetUid()) {
		status := r.GetStatus()
		starting := status.GetRestarts() > 0 || status.GetUnready() == spec.JustStarted || !r.GetMetadata().GetCreateTime().AsTime().Before(since)
		restarts := status.GetFailedProbe().GetProbe() == spec.ProbeLiveness // and that counts
		if r.GetSpec().GetRevisionUid() != revision || !placement.Wanted(r) || status.GetPhase() != spec.PhaseRunning || status.GetUnready() == "" ||
			starting || restarts || placement.Away(t.snap, r) {
			continue
		}
		return fmt.Sprintf("%s does not serve any more: %s", r.GetMetadata().GetName(), status.GetUnready())
	}
	return ""
}

// figures are the requests of a step that has held.
func figures(o rollout.Observed) string {
	if !o.Measured || o.Requests == 0 {
		return ""
	}
	return fmt.Sprintf(": %s, %d of them failed, P99 %s", spec.Count(int(o.Requests), "request"), o.Errors, spec.FormatDuration(o.P99.Round(time.Millisecond)))
}

// baseOf is a workload at its last good revision, if that runs beside the new one now; otherwise nil. Work that ends by itself
// and singletons run beside nothing.
func (t *tick) baseOf(w *v1.Workload) *v1.Workload {
	d := t.deployments[w.GetMetadata().GetUid()]
	if d == nil {
		d = t.snap.Deployment(w.GetStatus().GetDeploymentUid())
	}
	if !spec.CanaryStepping(d) || d.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() || w.GetMetadata().GetDeleteTime() != nil {
		return nil
	}
	previous := t.snap.Revision(d.GetSpec().GetPreviousUid())
	if s := previous.GetSpec().GetWorkload(); s == nil || s.GetSingleton() || s.GetRestart().GetPolicy() != rollout.PolicyAlways {
		return nil
	}
	base := proto.CloneOf(w)
	spec.ReturnTo(base, previous)
	return base
}

// runningAs is the workload of a replica at the replica's revision, if that is to run now; otherwise nil.
func (t *tick) runningAs(r *v1.Replica) *v1.Workload {
	w := t.target(t.snap.Workload(r.GetSpec().GetWorkloadUid()))
	if w == nil || w.GetStatus().GetRevisionUid() == r.GetSpec().GetRevisionUid() {
		return w
	}
	if base := t.baseOf(w); base != nil && base.GetStatus().GetRevisionUid() == r.GetSpec().GetRevisionUid() {
		return base
	}
	return nil
}

// runBoth runs the last good revision as a whole service, and beside it the replicas of the new one that the present step
// needs.
func (t *tick) runBoth(w, base *v1.Workload, canaries rollout.Input, have survey) {
	d := cmp.Or(t.deployments[w.GetMetadata().GetUid()], t.snap.Deployment(w.GetStatus().GetDeploymentUid()))
	share := spec.StepsOf(spec.CanaryOf(d))[max(1, d.GetStatus().GetStep())-1]
	canaries.Desired = rollout.Canaries(canaries.Desired, share)
	old := placement.InputOf(base, have.replicas)
	old.Places, old.Update.Paused = t.placesToLevel(base), canaries.Update.Paused
	ofBase, ofCanaries := rollout.NextOfCanary(old, canaries)
	fallen, fresh := have.fallen.divide(w.GetStatus().GetRevisionUid())
	have.fallen = fallen
	t.carryStep(base, ofBase, have)
	have.fallen = fresh
	t.carryStep(w, ofCanaries, have)
}

// divide separates the casualties of a revision from all others.
func (c casualties) divide(revision string) (others, of casualties) {
	split := func(all []placement.Casualty) (not, is []placement.Casualty) {
		for _, one := range all {
			if one.Replica.GetSpec().GetRevisionUid() == revision {
				is = append(is, one)
			} else {
				not = append(not, one)
			}
		}
		return slices.Clip(not), slices.Clip(is)
	}
	others, of = c, c
	others.lost, of.lost = split(c.lost)
	others.fenced, of.fenced = split(c.fenced)
	others.evicted, of.evicted = split(c.evicted)
	return others, of
}
