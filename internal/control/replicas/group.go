package replicas

import (
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The deployments of one apply are a group, which rolls back together: if one fails, those that
// have not ended roll back as well, and those that have succeeded return to their earlier
// revision. A workload without an earlier revision keeps its replicas. If it has none yet, none
// start.

// author is who makes the deployments that undo others of a group, as events name them.
const author = "scheduler"

// followGroup keeps track of which deployments belong together.
func (c *cluster) followGroup(before, after *v1.Deployment) {
	if group := after.GetSpec().GetGroup(); group != "" {
		if c.groups[group] == nil {
			c.groups[group] = map[string]bool{}
		}
		c.groups[group][after.GetMetadata().GetUid()] = true
	}
	if group := before.GetSpec().GetGroup(); group != "" && after == nil {
		if delete(c.groups[group], before.GetMetadata().GetUid()); len(c.groups[group]) == 0 {
			delete(c.groups, group)
		}
	}
}

// groupFailure says which other deployment of a group has failed by itself, and why. Those that
// an operator has ended or replaced do not count, nor those that only follow another one.
func (t *tick) groupFailure(d *v1.Deployment) string {
	for _, uid := range slices.Sorted(maps.Keys(t.cluster.groups[d.GetSpec().GetGroup()])) {
		other := t.snap.Deployment(uid)
		newest := t.snap.Workload(other.GetSpec().GetWorkloadUid()).GetStatus().GetDeploymentUid()
		if uid == d.GetMetadata().GetUid() || newest != uid || other.GetSpec().GetAborted() {
			continue
		}
		what := ""
		switch other.GetStatus().GetPhase() {
		case spec.DeploymentFailed:
			what = "failed"
		case spec.DeploymentRolledBack:
			what = "was rolled back"
		default:
			continue
		}
		return fmt.Sprintf("deployment %d of workload %s, which was applied together with it, %s: %s",
			other.GetSpec().GetNumber(), other.GetSpec().GetWorkload(), what, other.GetStatus().GetReason())
	}
	return ""
}

// wakeGroup makes the workloads of a group due.
func (t *tick) wakeGroup(d *v1.Deployment) {
	for uid := range t.cluster.groups[d.GetSpec().GetGroup()] {
		if other := t.snap.Deployment(uid); other != nil {
			t.left.Workloads[other.GetSpec().GetWorkloadUid()] = true
		}
	}
}

// followGroup returns a workload whose newest deployment has succeeded to its earlier revision,
// if another deployment of the group has failed.
func (t *tick) followGroup(old *v1.Workload) (rolledBack bool) {
	d := t.snap.Deployment(old.GetStatus().GetDeploymentUid())
	if d.GetSpec().GetGroup() == "" || d.GetStatus().GetPhase() != spec.DeploymentSucceeded || old.GetMetadata().GetDeleteTime() != nil {
		return false
	}
	previous, why := t.snap.Revision(d.GetSpec().GetPreviousUid()), t.groupFailure(d)
	if previous == nil || why == "" {
		return false
	}
	w := proto.CloneOf(old)
	spec.ReturnTo(w, previous)
	made, _ := rollout.Deploying{
		UID: t.newUID(), Now: t.now, Cause: spec.CauseRollback, Author: author,
		Before: old.GetStatus(), Earlier: t.snap.DeploymentsOf(old.GetMetadata().GetUid()),
	}.Deploy(w)
	made.Status.Reason = why
	t.batch.Create(made)
	t.batch.Update(w, old.GetMetadata().GetVersion())
	t.event(w, "RolledBack", fmt.Sprintf("from revision %d to revision %d: %s", d.GetSpec().GetRevision(), previous.GetSpec().GetNumber(), why), state.SeverityWarning)
	return true
}
