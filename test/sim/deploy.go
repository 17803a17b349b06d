package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// What operators do with deployments. The transactions are those of the API: package rollout makes their objects.

// Images of releases that do not work.
const (
	crashing = "crashing:1" // its programs crash before they listen
	mute     = "mute:1"     // its programs never listen
	absent   = "absent:1"   // it does not exist
)

// broken reports whether the programs of a spec never serve.
func broken(s *v1.WorkloadSpec) bool {
	return slices.Contains([]string{crashing, mute, absent}, s.GetImage())
}

// anyRollout draws how a service is updated, and whether it is a singleton.
func anyRollout(c *rand.Rand, s *v1.WorkloadSpec) {
	always := s.GetRestart().GetPolicy() == "always"
	u := &v1.Update{}
	switch c.IntN(8) {
	case 0:
		u.Strategy, s.MinAvailable = spec.StrategyRecreate, 0
	case 1, 2:
		if always {
			u.Strategy, u.KeepOld, u.ManualSwitch = spec.StrategyBlueGreen, []string{"0s", "30s", "10m"}[c.IntN(3)], c.IntN(3) == 0
		}
	case 3:
		u.MaxSurge = []string{"1", "2", "100%"}[c.IntN(3)]
	case 4:
		if always {
			s.Singleton, s.MinAvailable, s.Replicas = true, 0, proto.Int32(min(1, s.GetReplicas()))
		}
	case 5, 6:
		if always {
			u.Strategy, u.Canary = spec.StrategyCanary, anyCanary(c)
		}
	}
	u.MinReady = []string{"", "", "0s", "10s"}[c.IntN(4)]
	u.ProgressDeadline = []string{"", "1m", "3m"}[c.IntN(3)]
	s.Update = u
	if c.IntN(6) == 0 {
		s.Release = &v1.Release{Command: []string{"migrate"}, Timeout: []string{"1m", "5m"}[c.IntN(2)]}
	}
}

// deploy adds a deployment of the current revision of a workload. old is the workload before, nil if it is new.
func (w *World) deploy(s *server, snap *state.Snapshot, b *state.Batch, old, one *v1.Workload, cause string) *v1.Deployment {
	if !spec.HasDeployments(one.GetSpec()) {
		return nil
	}
	made, replaced := rollout.Deploying{
		UID: w.uidsOf(s)(), Now: w.wall(s), Cause: cause, Author: "operator",
		Before: old.GetStatus(), Earlier: snap.DeploymentsOf(one.GetMetadata().GetUid()),
	}.Deploy(one)
	b.Create(made)
	if replaced != nil && w.flaw != Overlapping {
		b.Update(replaced, replaced.GetMetadata().GetVersion())
	}
	return made
}

// buildUpdate gives a workload another spec of the same kind. The deployment is nil if no replica is replaced.
func (w *World) buildUpdate(s *server, snap *state.Snapshot, b *state.Batch, one *v1.Workload, wanted *v1.WorkloadSpec) *v1.Deployment {
	old := proto.CloneOf(one)
	one.Spec = asKind(proto.CloneOf(wanted), one.GetSpec().GetKind())
	if one.Spec.Singleton != old.GetSpec().GetSingleton() { // a workload remains what it is, so that there is something to check
		one.Spec = old.Spec
		one.Spec.Image = wanted.GetImage()
	}
	one.Spec.DependsOn = old.GetSpec().GetDependsOn()
	if one.Spec.Autoscale = nil; scalable(one.Spec) {
		one.Spec.Autoscale = old.GetSpec().GetAutoscale()
	}
	spec.ForgetScale(one)
	if spec.ReplacesNone(old.GetSpec(), one.GetSpec()) && !failedToBegin(snap, old) {
		return nil
	}
	w.revise(s, b, one)
	return w.deploy(s, snap, b, old, one, spec.CauseApply)
}

// failedToBegin reports whether the newest deployment has failed before its first replica.
func failedToBegin(snap *state.Snapshot, one *v1.Workload) bool {
	d := snap.Deployment(one.GetStatus().GetDeploymentUid())
	return spec.Waits(one, d) && !spec.DeploymentOpen(d) && spec.HasDeployments(one.GetSpec())
}

// lastGoodOf is the revision of the newest deployment of a workload that succeeded and suits, or nil.
func lastGoodOf(snap *state.Snapshot, one *v1.Workload, suits func(*v1.Deployment) bool) *v1.Revision {
	good := rollout.LastGood(snap.DeploymentsOf(one.GetMetadata().GetUid()), suits)
	return snap.Revision(good.GetSpec().GetRevisionUid())
}

func anyDeployment(*v1.Deployment) bool { return true }

// breakable reports whether a service has a revision to go back to after a release that does not work. Without replicas
// nobody would notice that it does not.
func breakable(snap *state.Snapshot, one *v1.Workload) bool {
	// What does not work is not scaled by the cluster, so the number of the spec counts then.
	return one.GetSpec().GetKind() == "" && spec.Replicas(one) > 0 && one.GetSpec().GetReplicas() > 0 && one.GetSpec().GetRestart().GetPolicy() == "always" && lastGoodOf(snap, one, anyDeployment) != nil
}

// actBreakRelease releases something that does not work.
func (w *World) actBreakRelease(c *rand.Rand) {
	image := []string{crashing, mute, absent}[c.IntN(3)]
	w.change(c, "release "+image, func(s *server, snap *state.Snapshot, b *state.Batch, one *v1.Workload) bool {
		if !breakable(snap, one) {
			return false
		}
		wanted := proto.CloneOf(one.GetSpec())
		wanted.Image = image
		return w.buildUpdate(s, snap, b, one, wanted) != nil
	})
}

// actSteer pauses, resumes, promotes or aborts the newest deployment of a workload.
func (w *World) actSteer(c *rand.Rand) {
	what := []string{"pause", "pause", "resume", "resume", "promote", "promote", "abort"}[c.IntN(7)]
	w.steer(what, w.openOne(c))
}

// openOne draws an open deployment.
func (w *World) openOne(c *rand.Rand) *v1.Deployment {
	t := w.leader
	if t == nil {
		return nil
	}
	var open []*v1.Deployment
	for d := range t.server.store.Snapshot().Deployments("", "") {
		if spec.DeploymentOpen(d) {
			open = append(open, d)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[c.IntN(len(open))]
}

// steer lets an operator change an open deployment.
func (w *World) steer(what string, of *v1.Deployment) {
	if of == nil {
		return
	}
	uid := of.GetMetadata().GetUid()
	w.operate(what+" "+of.GetMetadata().GetName(), func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Deployment(uid)
		one := snap.Workload(old.GetSpec().GetWorkloadUid())
		if !spec.DeploymentOpen(old) || one == nil || one.GetMetadata().GetDeleteTime() != nil {
			return false
		}
		d := proto.CloneOf(old)
		changed := false
		switch blueGreen := spec.DeploymentStrategy(d, one.GetSpec()) == spec.StrategyBlueGreen; what {
		case "pause":
			changed = rollout.Pause(d, w.wall(s))
		case "resume":
			changed = rollout.Resume(d, w.wall(s))
		case "promote":
			switch {
			case d.GetSpec().GetPaused():
			case blueGreen:
				changed = rollout.Promote(d)
			case spec.CanaryOf(d) != nil:
				changed = rollout.PromoteCanary(d, d.GetMetadata().GetVersion()%3 == 0)
			}
		case "abort":
			changed = d.GetSpec().GetPreviousUid() != "" && rollout.Abort(d)
		}
		if changed {
			b.Update(d, old.GetMetadata().GetVersion())
		}
		return changed
	}, nil)
}

// actUndo goes back to an earlier revision of a workload.
func (w *World) actUndo(c *rand.Rand) {
	last := c.IntN(2) == 0
	w.change(c, "undo", func(s *server, snap *state.Snapshot, b *state.Batch, one *v1.Workload) bool {
		current := one.GetStatus().GetRevisionUid()
		target := lastGoodOf(snap, one, func(d *v1.Deployment) bool {
			return last && d.GetSpec().GetRevisionUid() != current && snap.Revision(d.GetSpec().GetRevisionUid()) != nil
		})
		if !last { // the oldest one that once worked
			for d := range snap.DeploymentsOf(one.GetMetadata().GetUid()) {
				if r := snap.Revision(d.GetSpec().GetRevisionUid()); target == nil && d.GetStatus().GetPhase() == spec.DeploymentSucceeded && r != nil {
					target = r
				}
			}
		}
		if target == nil || target.GetMetadata().GetUid() == current || one.GetStatus().GetOwnerUid() != "" || !spec.HasDeployments(one.GetSpec()) {
			return false
		}
		old := proto.CloneOf(one)
		spec.ReturnTo(one, target)
		w.deploy(s, snap, b, old, one, spec.CauseRollback)
		return true
	})
}

// actApply changes several workloads in one transaction. Their deployments are a group.
func (w *World) actApply(c *rand.Rand) {
	var uids []string
	for range 2 + c.IntN(2) {
		if one := w.workload(c); one != nil && !slices.Contains(uids, one.GetMetadata().GetUid()) {
			uids = append(uids, one.GetMetadata().GetUid())
		}
	}
	var specs []*v1.WorkloadSpec
	for range uids {
		specs = append(specs, anySpec(c))
	}
	bad, depends, added := c.IntN(3) == 0, c.IntN(2) == 0, anySpec(c)
	w.names++
	name := fmt.Sprintf("g%d", w.names)
	w.operate("apply "+name, func(s *server, snap *state.Snapshot, b *state.Batch) bool {
		if snap.WorkloadByName(namespaceOf(name), name) != nil {
			return false // an earlier attempt was committed after all
		}
		var made []*v1.Deployment
		var first *v1.Workload
		for i, uid := range uids {
			old := snap.Workload(uid)
			if old == nil || old.GetMetadata().GetDeleteTime() != nil || old.GetStatus().GetOwnerUid() != "" {
				continue
			}
			wanted := proto.CloneOf(specs[i])
			if bad && i == 0 && breakable(snap, old) {
				wanted = proto.CloneOf(old.GetSpec())
				wanted.Image = crashing
			}
			one := proto.CloneOf(old)
			if d := w.buildUpdate(s, snap, b, one, wanted); d != nil {
				made = append(made, d)
			}
			b.Update(one, old.GetMetadata().GetVersion())
			if first == nil && namespaceOf(name) == one.GetMetadata().GetNamespace() && one.GetSpec().GetKind() != spec.KindCron {
				first = one
			}
		}
		if wanted := proto.CloneOf(added); snap.Count(state.KindWorkload) < maxWorkloads {
			if depends && first != nil {
				need := spec.DependsReady
				if first.GetSpec().GetKind() == spec.KindJob {
					need = spec.DependsCompleted
				}
				wanted.DependsOn = map[string]string{first.GetMetadata().GetName(): need}
			}
			_, d := w.addWorkload(s, snap, b, name, wanted)
			made = append(made, d)
		}
		if len(made) > 1 {
			group := w.uidsOf(s)()
			for _, d := range made {
				d.Spec.Group = group
			}
		}
		return b.Len() > 0
	}, nil)
}

// addWorkload adds a new workload and its deployment, nil if it has none.
func (w *World) addWorkload(s *server, snap *state.Snapshot, b *state.Batch, name string, wanted *v1.WorkloadSpec) (one *v1.Workload, made *v1.Deployment) {
	one = &v1.Workload{
		ApiVersion: spec.APIVersion, Kind: "Workload",
		Metadata: &v1.Metadata{Uid: w.uidsOf(s)(), Name: name, Namespace: namespaceOf(name)},
		Spec:     proto.CloneOf(wanted), Status: &v1.WorkloadStatus{},
	}
	if err := spec.Validate(&v1.Workload{ApiVersion: one.ApiVersion, Kind: one.Kind, Metadata: &v1.Metadata{Name: name}, Spec: one.Spec}); err != nil {
		w.fail("simulation", "%s is not valid: %v", name, err)
	}
	w.revise(s, b, one)
	made = w.deploy(s, snap, b, nil, one, spec.CauseCreate)
	b.Create(one)
	return one, made
}

// finishDeployments lets operators decide about deployments that wait for them.
func (w *World) finishDeployments() {
	for d := range w.newest().Deployments("", "") {
		one := w.newest().Workload(d.GetSpec().GetWorkloadUid())
		switch {
		case !spec.DeploymentOpen(d) || one == nil:
		case d.GetSpec().GetPaused():
			w.steer("resume", d)
		case one.GetSpec().GetUpdate().GetManualSwitch() && spec.DeploymentStrategy(d, one.GetSpec()) == spec.StrategyBlueGreen &&
			!d.GetSpec().GetPromoted() && !d.GetStatus().GetSwitched() && !d.GetStatus().GetWaiting():
			w.steer("promote", d)
		}
	}
}

// target is a workload as its replicas should be now: with the last good revision while its newest deployment waits. It
// is nil if there is none.
func target(snap *state.Snapshot, one *v1.Workload) *v1.Workload {
	d := snap.Deployment(one.GetStatus().GetDeploymentUid())
	if !spec.Waits(one, d) {
		return one
	}
	previous := snap.Revision(d.GetSpec().GetPreviousUid())
	if previous == nil {
		return nil
	}
	before := proto.CloneOf(one)
	spec.ReturnTo(before, previous)
	return before
}

// surgeOf is how many replicas more than desired an update of a service may run.
func surgeOf(snap *state.Snapshot, one *v1.Workload) int {
	d := snap.Deployment(one.GetStatus().GetDeploymentUid())
	desired := int(spec.Replicas(one))
	switch strategy := spec.DeploymentStrategy(d, one.GetSpec()); {
	case one.GetSpec().GetRestart().GetPolicy() != "always" || strategy == spec.StrategyRecreate:
		return 0
	case strategy == spec.StrategyBlueGreen:
		return desired
	case spec.CanaryOf(d) != nil:
		return spec.SurgeOf(one.GetSpec(), desired) + rollout.Canaries(desired, slices.Max(spec.StepsOf(spec.CanaryOf(d))))
	}
	return spec.SurgeOf(one.GetSpec(), desired)
}

// recreates reports whether all replicas of a workload stop before the new ones start.
func recreates(snap *state.Snapshot, one *v1.Workload) bool {
	d := snap.Deployment(one.GetStatus().GetDeploymentUid())
	return spec.DeploymentStrategy(d, one.GetSpec()) == spec.StrategyRecreate || spec.StrategyOf(one.GetSpec()) == spec.StrategyRecreate
}
