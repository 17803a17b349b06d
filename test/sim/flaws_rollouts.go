package sim

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/replicas"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The flaws of rollouts, singletons and drains.
const (
	// Leases do not hold back the replacement of singletons.
	Unfenced Flaw = "unfenced"
	// The fencing epoch shrinks.
	Shrinking Flaw = "shrinking"
	// Deployments succeed as soon as they begin.
	Impatient Flaw = "impatient"
	// A failed deployment is not rolled back.
	Resigned Flaw = "resigned"
	// A rollback stays at the revision that does not work.
	Rewinding Flaw = "rewinding"
	// A deployment that has ended is opened again.
	Undead Flaw = "undead"
	// A new deployment leaves the one before open.
	Overlapping Flaw = "overlapping"
	// A blue-green deployment switches at once.
	Eager Flaw = "eager"
	// The traffic ignores the switch.
	Torn Flaw = "torn"
	// An update stops all outdated replicas at once.
	Hurried Flaw = "hurried"
	// An update relies on a new replica that does not serve yet.
	Gullible Flaw = "gullible"
	// Agents repeat release commands that have ended.
	Retrying Flaw = "retrying"
	// An update starts more replicas than its surge allows.
	Lavish Flaw = "lavish"
	// A drain stops all replicas of the node at once.
	Brusque Flaw = "brusque"
	// The engine of replicas does not notice that a node drains.
	Lingering Flaw = "lingering"
	// Deployments wait for nothing.
	Headlong Flaw = "headlong"
	// A release command that has failed is repeated.
	Rerunning Flaw = "rerunning"
	// The steps of a canary do not hold.
	Skipping Flaw = "skipping"
	// Nobody counts the requests of a canary.
	Deluded Flaw = "deluded"
	// The engine of replicas does not know which deployments belong together.
	Solitary Flaw = "solitary"
)

// spoil changes a step of the loop of replicas as a flaw demands.
func (w *World) spoil(snap *state.Snapshot, b *state.Batch, uid func() string) {
	switch w.flaw {
	case Crowding:
		crowd(snap, b.Transaction(w.clock()))
	case Ruthless:
		pushOut(snap, b)
	case Undead:
		revive(snap, b)
	case Hurried:
		stopEach(snap, b, "", func(r *v1.Replica, one *v1.Workload) bool {
			return spec.DeploymentOpen(snap.Deployment(one.GetStatus().GetDeploymentUid())) && r.GetSpec().GetRevisionUid() != one.GetStatus().GetRevisionUid()
		})
	case Gullible:
		once := map[string]bool{}
		stopEach(snap, b, "", func(r *v1.Replica, one *v1.Workload) bool {
			uid := one.GetMetadata().GetUid()
			if once[uid] || r.GetSpec().GetRevisionUid() == one.GetStatus().GetRevisionUid() || one.GetSpec().GetMinAvailable() > 0 {
				return false
			}
			once[uid] = true
			return spec.DeploymentOpen(snap.Deployment(one.GetStatus().GetDeploymentUid())) && placed(snap, one)
		})
	case Brusque:
		stopEach(snap, b, "its node is being drained", func(r *v1.Replica, _ *v1.Workload) bool {
			return spec.Drains(snap.Node(r.GetSpec().GetNodeUid()))
		})
	case Aimless:
		w.mislead(snap, b)
	case Abrupt:
		stopEach(snap, b, "it is moved", func(r *v1.Replica, _ *v1.Workload) bool {
			to := moverOf(snap, r)
			return to != nil && !spec.Serves(to)
		})
	case Lavish:
		multiply(snap, b, uid)
	case Rerunning:
		rerun(snap, b, uid)
	default:
		spoilDeployments(w.flaw, snap, b.Transaction(w.clock()))
	}
}

// spoilDeployments changes what a step writes about deployments and singletons.
func spoilDeployments(flaw Flaw, snap *state.Snapshot, tx *statev1.Transaction) {
	for _, change := range tx.GetChanges() {
		d, r := change.GetPut().GetDeployment(), change.GetPut().GetReplica()
		open := spec.DeploymentOpen(d)
		switch {
		case flaw == Shrinking && r.GetSpec().GetEpoch() > 0 && snap.Replica(r.GetMetadata().GetUid()) == nil:
			r.Spec.Epoch = ^r.Spec.Epoch
		case flaw == Impatient && open:
			d.Status.Phase = spec.DeploymentSucceeded
		case flaw == Resigned && d.GetStatus().GetPhase() == spec.DeploymentRolledBack:
			d.Status.Phase = spec.DeploymentFailed
		case flaw == Eager && open:
			d.Status.Switched = spec.DeploymentStrategy(d, nil) == spec.StrategyBlueGreen
		case flaw == Skipping && spec.CanaryStepping(d) && d.GetStatus().GetStepTime() != nil:
			d.Status.Step, d.Status.StepTime = d.GetStatus().GetStep()+1, nil
		case flaw == Headlong && open:
			d.Status.Waiting = false
		case flaw == Rewinding && d.GetStatus().GetPhase() == spec.DeploymentRolledBack:
			for _, other := range tx.GetChanges() {
				if one := other.GetPut().GetWorkload(); one.GetMetadata().GetUid() == d.GetSpec().GetWorkloadUid() && one != nil {
					one.Status.Revision, one.Status.RevisionUid = d.GetSpec().GetRevision(), d.GetSpec().GetRevisionUid()
				}
			}
		}
	}
}

// revive opens the first deployment that has ended.
func revive(snap *state.Snapshot, b *state.Batch) {
	for old := range snap.Deployments("", "") {
		if !spec.DeploymentOpen(old) {
			d := proto.CloneOf(old)
			d.Status.Phase = spec.DeploymentRunning
			b.BeginPart()
			b.Update(d, old.GetMetadata().GetVersion())
			return
		}
	}
}

// stopEach stops all matching replicas of services that serve.
func stopEach(snap *state.Snapshot, b *state.Batch, reason string, match func(*v1.Replica, *v1.Workload) bool) {
	written := map[string]bool{}
	for _, change := range b.Transaction(dawn).GetChanges() {
		written[change.GetPut().GetReplica().GetMetadata().GetUid()] = true
	}
	for old := range snap.Replicas("", "") {
		one := snap.Workload(old.GetSpec().GetWorkloadUid())
		if one == nil || one.GetSpec().GetKind() != "" || !wanted(old) || !spec.Serves(old) || written[old.GetMetadata().GetUid()] || !match(old, one) {
			continue
		}
		r := proto.CloneOf(old)
		r.Spec.Desired, r.Spec.StopReason = spec.DesiredStopped, reason
		b.BeginPart()
		b.Update(r, old.GetMetadata().GetVersion())
	}
}

// placed reports whether a replica of the current revision has a node and does not serve yet.
func placed(snap *state.Snapshot, one *v1.Workload) bool {
	for r := range snap.ReplicasOf(one.GetMetadata().GetUid()) {
		if wanted(r) && r.GetSpec().GetRevisionUid() == one.GetStatus().GetRevisionUid() && r.GetSpec().GetNodeUid() != "" && !spec.Serves(r) {
			return true
		}
	}
	return false
}

// multiply creates many more replicas like the first one of a service that is created.
func multiply(snap *state.Snapshot, b *state.Batch, uid func() string) {
	for _, change := range b.Transaction(dawn).GetChanges() {
		made := change.GetPut().GetReplica()
		if one := snap.Workload(made.GetSpec().GetWorkloadUid()); one == nil || made.GetMetadata().GetVersion() != 0 || one.GetSpec().GetKind() != "" || recreates(snap, one) {
			continue
		}
		for i := range 20 {
			r := proto.CloneOf(made)
			r.Metadata.Uid, r.Metadata.Name = uid(), fmt.Sprintf("%s-%d", made.GetMetadata().GetName(), i)
			r.Spec.NodeUid, r.Spec.Node, r.Status = "", "", &v1.ReplicaStatus{Phase: spec.PhasePending}
			b.BeginPart()
			b.Create(r)
		}
		return
	}
}

// rerun creates another replica of each release command that has failed.
func rerun(snap *state.Snapshot, b *state.Batch, uid func() string) {
	for old := range snap.Replicas("", "") {
		if old.GetStatus().GetPhase() == spec.PhaseFailed && spec.IsRelease(snap.Workload(old.GetSpec().GetWorkloadUid())) {
			r := proto.CloneOf(old)
			r.Metadata.Uid, r.Metadata.Version = uid(), 0
			r.Metadata.Name += "-again"
			r.Spec.NodeUid, r.Spec.Node, r.Status = "", "", &v1.ReplicaStatus{Phase: spec.PhasePending}
			b.BeginPart()
			b.Create(r)
			return
		}
	}
}

// withoutGroups are changes without those of deployments that belong together.
func withoutGroups(changes []state.Change) []state.Change {
	return without(changes, func(c state.Change) bool {
		d, _ := c.New.(*v1.Deployment)
		return d.GetSpec().GetGroup() != ""
	})
}

// overlookDrains removes draining nodes from what an engine has to look at.
func overlookDrains(e *replicas.Engine, snap *state.Snapshot) {
	for uid := range e.Due.Nodes {
		if spec.Drains(snap.Node(uid)) {
			delete(e.Due.Nodes, uid)
		}
	}
}
