package wait

import (
	"context"
	"fmt"
	"strings"
	"time"

	cloudlessv1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/client"
	"github.com/cloudless/cloudless/internal/cli/command"
	"github.com/cloudless/cloudless/internal/cli/phrase"
	"github.com/cloudless/cloudless/internal/cli/terminal"
	"github.com/cloudless/cloudless/internal/spec"
)

// The deployment of a workload, which decides when a change of the workload is done.

// Exit codes of commands that wait for a deployment.
const (
	ExitFailed     = 3
	ExitRolledBack = 4
)

// ExitOf is the exit code for the end of a deployment, 0 if it has succeeded or not ended.
func ExitOf(d *cloudlessv1.Deployment) int {
	switch d.GetStatus().GetPhase() {
	case spec.DeploymentFailed:
		return ExitFailed
	case spec.DeploymentRolledBack:
		return ExitRolledBack
	}
	return 0
}

// updateDeployment takes the newest state of a deployment. Only the one that was current after the request counts: the
// request has made it, or has found it open.
func (w *tracked) updateDeployment(d *cloudlessv1.Deployment, removed bool) {
	if removed || d.GetMetadata().GetUid() != w.asked.GetStatus().GetDeploymentUid() {
		return
	}
	if w.deployment != nil || !spec.DeploymentEnded(d.GetStatus().GetPhase()) || w.endedSince(d) {
		w.deployment = d
	}
}

// endedSince reports whether a deployment has ended after the request. One that ended before says nothing about it.
func (w *tracked) endedSince(d *cloudlessv1.Deployment) bool {
	if w.changed() {
		return !d.GetStatus().GetEndTime().AsTime().Before(w.asked.GetMetadata().GetUpdateTime().AsTime())
	}
	// The request changed nothing, so its time is unknown. A rollback leaves the revision of its deployment, and at the
	// time of the request that one was current.
	return d.GetStatus().GetPhase() == spec.DeploymentRolledBack && d.GetSpec().GetRevisionUid() == w.asked.GetStatus().GetRevisionUid()
}

// changed reports whether the request has changed the workload.
func (w *tracked) changed() bool {
	return w.action == spec.ActionCreate || w.action == spec.ActionUpdate
}

// deployed reports whether the deployment has done what a user waits for: it has succeeded, its service has switched, or
// only the user can continue it.
func (w *tracked) deployed() bool {
	status := w.deployment.GetStatus()
	return status.GetPhase() == spec.DeploymentSucceeded || status.GetSwitched() || w.awaitsPromotion()
}

// awaitsPromotion reports whether a blue-green deployment is complete and waits for an operator.
func (w *tracked) awaitsPromotion() bool {
	d := w.deployment
	return spec.AwaitsPromotion(w.now.GetSpec(), d) && !d.GetStatus().GetSwitched() &&
		d.GetStatus().GetPhase() == spec.DeploymentRunning && d.GetStatus().GetDesired() > 0 && d.GetStatus().GetServing() >= d.GetStatus().GetDesired()
}

// notePromotions says how deployments continue that wait for an operator.
func (t *tracker) notePromotions(e *command.Env) {
	for _, w := range t.workloads {
		if m := w.asked.GetMetadata(); w.awaitsPromotion() {
			e.Note("The new replicas of %s serve, and its service still leads to the old ones. Switch with: %s", m.GetName(),
				spec.Hint(m.GetNamespace(), "cloudless rollout promote "+m.GetName()))
		}
	}
}

// deploying reports whether the leader carries out the deployment, or will when it has waited long enough.
func (w *tracked) deploying() bool {
	status := w.deployment.GetStatus()
	return status.GetPhase() == spec.DeploymentRunning || status.GetPhase() == spec.DeploymentPaused || spec.DeploymentOpen(w.deployment) && status.GetWaiting()
}

// rollsBack reports whether the cluster itself ends a deployment that does not work.
func (w *tracked) rollsBack() bool {
	return w.deploying() && w.deployment.GetSpec().GetPreviousUid() != ""
}

// roomFor is how long a replica of a deployment may have no node before the deployment counts as stuck: an old replica
// may make room for it.
const roomFor = 5 * time.Second

// waitsForRoom reports whether a replica has had no node for a while.
func (w *tracked) waitsForRoom(now time.Duration) bool {
	for uid, r := range w.replicas {
		if r.GetStatus().GetPhase() == spec.PhasePending && r.GetSpec().GetNode() == "" && now-w.since[uid] >= roomFor {
			return true
		}
	}
	return false
}

// deploymentError says how a deployment has ended and why, with the last line of a replica that did not run.
func deploymentError(ctx context.Context, cl *client.Client, w *tracked) error {
	d := w.deployment
	s, status := d.GetSpec(), d.GetStatus()
	outcome := "failed"
	if status.GetPhase() == spec.DeploymentRolledBack {
		outcome = fmt.Sprintf("was rolled back to revision %d", s.GetPrevious())
	}
	why := ""
	if status.GetReason() != "" {
		why = ": " + clause(terminal.Plain(status.GetReason()))
	}
	if r := w.culprit(); r != nil {
		why += aboutCulprit(status.GetReason(), r, lastLine(ctx, cl, r))
	}
	return command.Exit(ExitOf(d), &endedError{fmt.Sprintf("deployment %d of workload %s %s%s: see: %s", s.GetNumber(), s.GetWorkload(), outcome, why,
		spec.Hint(d.GetMetadata().GetNamespace(), "cloudless rollout history "+s.GetWorkload()))})
}

// endedError says that a deployment has failed or was rolled back.
type endedError struct{ text string }

func (e *endedError) Error() string { return e.text }

// aboutCulprit adds to the reason of a deployment what it does not say about a replica.
func aboutCulprit(reason string, r *cloudlessv1.Replica, lastLine string) string {
	var more []string
	if !strings.Contains(reason, r.GetMetadata().GetName()) {
		more = append(more, fmt.Sprintf("replica %s on %s: %s", r.GetMetadata().GetName(), r.GetSpec().GetNode(), clause(terminal.Plain(phrase.ReplicaReason(r)))))
	}
	if lastLine != "" {
		more = append(more, fmt.Sprintf("its last line is %q", lastLine))
	}
	if len(more) == 0 {
		return ""
	}
	return " (" + strings.Join(more, ", ") + ")"
}

// culprit is the replica of the new revision that has ended most often, nil if none has.
func (w *tracked) culprit() (worst *cloudlessv1.Replica) {
	for _, r := range w.replicas {
		ended := r.GetSpec().GetRevisionUid() == w.deployment.GetSpec().GetRevisionUid() && r.GetStatus().GetLastExit() != nil && phrase.ReplicaReason(r) != ""
		if ended && (worst == nil || r.GetStatus().GetRestarts() > worst.GetStatus().GetRestarts()) {
			worst = r
		}
	}
	return worst
}

// standing says why a replica does not serve, or whether it gets traffic. A service balances over ready replicas; see
// package services for the rules.
func (w *tracked) standing(r *cloudlessv1.Replica) string {
	d := w.deployment
	if why := replicaWhy(r); why != "" || !spec.Serves(r) || len(w.now.GetSpec().GetPorts()) == 0 {
		return why
	}
	isNew := r.GetSpec().GetRevisionUid() == d.GetSpec().GetRevisionUid()
	blueGreen, switched := d.GetSpec().GetStrategy() == spec.StrategyBlueGreen, d.GetStatus().GetSwitched()
	switch {
	case r.GetSpec().GetDesired() == spec.DesiredStopped:
		return "ready, gets no new connections"
	case d == nil || d.GetSpec().GetPreviousUid() == "":
	case blueGreen && isNew && !switched && spec.DeploymentOpen(d):
		return "ready, gets no traffic before the switch"
	case blueGreen && !isNew && switched:
		return "ready, gets no traffic since the switch"
	case spec.CanaryOpen(d) && isNew && d.GetStatus().GetWeight() == 0:
		return "ready, gets no traffic before all replicas of the first step have served for a while"
	case spec.CanaryStepping(d) && isNew:
		return fmt.Sprintf("ready, gets its part of %d%% of the traffic", d.GetStatus().GetWeight())
	case spec.CanaryStepping(d):
		return fmt.Sprintf("ready, gets its part of %d%% of the traffic", 100-d.GetStatus().GetWeight())
	case !blueGreen && isNew && spec.DeploymentOpen(d) && !w.proven():
		return "ready, gets no traffic before it has served for a while"
	}
	return "ready, gets traffic"
}

// proven reports whether a replica of the new revision has served for long enough.
func (w *tracked) proven() bool {
	for _, r := range w.replicas {
		if r.GetSpec().GetRevisionUid() == w.deployment.GetSpec().GetRevisionUid() && spec.Steady(r) {
			return true
		}
	}
	return false
}
