package sim

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
)

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
