package server

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// yieldEvery is the number of replicas after which the loop lets other goroutines run: listing large workloads must not
// delay writes.
const yieldEvery = 256

// presentWorkload returns a workload as the API shows it: the stored one with a status that is computed from its
// replicas. explain adds, node by node, why replicas are pending. Everything but the status is shared with the stored
// workload.
func (s *Server) presentWorkload(snap *state.Snapshot, stored *v1.Workload, explain bool) *v1.Workload {
	st := &v1.WorkloadStatus{
		Revision: stored.GetStatus().GetRevision(), RevisionUid: stored.GetStatus().GetRevisionUid(),
		Desired: s.desired(snap, stored), Configuration: stored.GetStatus().GetConfiguration(),
		OwnerUid: stored.GetStatus().GetOwnerUid(), Owner: stored.GetStatus().GetOwner(),
		Deployment: stored.GetStatus().GetDeployment(), DeploymentUid: stored.GetStatus().GetDeploymentUid(),
		LastRevision: stored.GetStatus().GetLastRevision(), Scale: s.scale(stored),
	}
	w := &v1.Workload{
		ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(),
		Metadata: stored.GetMetadata(), Spec: stored.GetSpec(), Status: st,
	}
	var completed int32
	offline := s.offlineIn(snap)
	hosts := map[string]bool{} // names of the offline or removed nodes that have replicas
	preempting := ""           // the preemption that makes room for a replica
	delayed := ""              // why a replica waits for a time
	unplaced := 0              // pending replicas that the scheduler found no node for
	unready := ""              // why a replica whose program runs does not serve
	stuck := ""                // why a singleton does not start
	seen := 0
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if seen++; seen%yieldEvery == 0 {
			runtime.Gosched()
		}
		if stuck == "" {
			stuck = placement.Stuck(snap, stored, r)
		}
		outdated := r.GetSpec().GetRevisionUid() != st.GetRevisionUid()
		if outdated && spec.Ended(r.GetStatus().GetPhase()) {
			continue // the end of an older revision says nothing about this one
		}
		if offline.host(r) {
			st.Pending++
			name := r.GetSpec().GetNode()
			if placement.NodeRemoved(snap, r) {
				name += " (removed)"
			}
			hosts[name] = true
			continue
		}
		switch phase := r.GetStatus().GetPhase(); {
		case spec.Serves(r):
			st.Running++
		case phase == spec.PhaseRunning:
			st.Pending++
			unready = fmt.Sprintf("replica %s is not ready: %s", r.GetMetadata().GetName(), r.GetStatus().GetUnready())
		case phase == spec.PhasePending, phase == spec.PhasePlaced, phase == spec.PhasePreparing:
			st.Pending++
			switch {
			case placement.HeldBack(time.Now(), r):
				delayed = fmt.Sprintf("replica %s %s", r.GetMetadata().GetName(), placement.HeldReason(r))
			case r.GetSpec().GetNodeUid() == "" && r.GetSpec().GetSucceeds() == "" && r.GetStatus().GetReason() != "":
				unplaced++
			}
			if r.GetSpec().GetReservedNodeUid() != "" {
				preempting = "replica " + r.GetMetadata().GetName() + " " + r.GetStatus().GetReason()
			}
		case phase == spec.PhaseBackoff:
			if outdated {
				break // it is about to be replaced
			}
			st.Failed++
			// A replica that exited with code 0 and has to be restarted has no reason.
			st.Reason = fmt.Sprintf("replica %s: %s", r.GetMetadata().GetName(), cmp.Or(r.GetStatus().GetReason(), "It exited with code 0."))
		case phase == spec.PhaseCompleted:
			completed++
		case phase == spec.PhaseFailed:
			st.Failed++
			st.Reason = fmt.Sprintf("replica %s failed: %s", r.GetMetadata().GetName(), r.GetStatus().GetReason())
		}
		if outdated {
			st.Outdated++
		}
	}
	if st.Reason == "" {
		st.Reason = unready
	}
	offlineNames := strings.Join(slices.Sorted(maps.Keys(hosts)), ", ")
	if offlineNames != "" {
		st.Reason = "replicas on an offline node: " + offlineNames
		if limit := limitOf(snap, w.GetMetadata().GetUid()); limit != "" {
			st.Reason += "; " + limit
		}
	}
	if delayed != "" {
		st.Reason = delayed
	}
	if preempting != "" {
		st.Reason = preempting
	}
	if stuck != "" {
		st.Reason = stuck
	}
	if st.Reason == "" && unplaced > 0 && !explain {
		st.Reason = fmt.Sprintf("%d cannot be placed %s", unplaced, explainHint(w.GetMetadata().GetNamespace(), w.GetMetadata().GetName()))
	}
	secret := ""
	if unplaced > 0 || st.Outdated > 0 {
		secret = placement.AwaitsSecret(snap, snap.Revision(st.GetRevisionUid()), s.Now())
	}
	if secret != "" {
		st.Reason = secret
	}
	if d := snap.Deployment(st.GetDeploymentUid()); st.Reason == "" && spec.Waits(stored, d) && spec.HasDeployments(stored.GetSpec()) {
		st.Reason = fmt.Sprintf("deployment %d %s", d.GetSpec().GetNumber(), waitText(d))
	}
	if waiting := awaits(snap, stored, seen); st.Reason == "" && waiting != "" {
		st.Reason = waiting
	}
	if st.Reason == "" && (spec.Asleep(stored) || st.GetScale().GetMissing() != "") {
		st.Reason = st.GetScale().GetReason()
	}
	st.Phase = phaseOf(w, completed)
	s.presentKind(snap, stored, w, completed)
	// A job that has ended waits for nothing, though some replicas may still be stopping.
	if explain && secret == "" && st.Pending+st.Outdated > 0 && st.GetJob().GetOutcome() == "" {
		s.explainPending(snap, w, offlineNames)
	}
	return w
}

// scale is what autoscaling has decided for a workload, with the measurements of now if this server makes them.
func (s *Server) scale(stored *v1.Workload) *v1.ScaleStatus {
	decided := stored.GetStatus().GetScale()
	if stored.GetSpec().GetAutoscale() == nil || s.scaling == nil {
		return decided
	}
	values := s.scaling.Values(stored.GetMetadata().GetUid())
	if values == nil {
		return decided
	}
	return &v1.ScaleStatus{
		Replicas: spec.Replicas(stored), Time: decided.GetTime(), Reason: decided.GetReason(), WokenTime: decided.GetWokenTime(), Missing: decided.GetMissing(),
		Values: values,
	}
}

// awaits says what a job without replicas waits for before it starts.
func awaits(snap *state.Snapshot, w *v1.Workload, replicas int) string {
	if w.GetSpec().GetKind() != spec.KindJob || replicas > 0 {
		return ""
	}
	waiting, _ := placement.Unmet(snap, w)
	return waiting
}

// waitText says why a deployment has not created replicas.
func waitText(d *v1.Deployment) string {
	if d.GetStatus().GetPhase() == spec.DeploymentFailed {
		return "failed: " + d.GetStatus().GetReason()
	}
	return d.GetStatus().GetReason()
}

// explainPending adds to a status, node by node, why replicas are pending. Some may be on offline nodes.
func (s *Server) explainPending(snap *state.Snapshot, w *v1.Workload, offlineNames string) {
	st := w.GetStatus()
	st.Unplaced = s.placement.Explain(snap, w.GetMetadata().GetUid())
	st.Quota = s.placement.ShortOfQuota(snap, w.GetMetadata().GetUid())
	switch {
	case st.Quota != "":
		st.Reason = st.Quota
	case len(st.Unplaced) == 0:
	case offlineNames != "":
		st.Reason = "node " + offlineNames + " is offline, and no other node can take its replicas"
	case st.Pending > 0:
		st.Reason = "no node can take the pending replicas"
	default:
		st.Reason = "no node can take a replica of the new revision, not even in place of an old one"
	}
}

func phaseOf(w *v1.Workload, completed int32) string {
	st := w.GetStatus()
	switch {
	case w.GetMetadata().GetDeleteTime() != nil:
		return spec.PhaseDeleting
	case st.GetDesired() == 0 && st.GetRunning() == 0:
		return spec.PhaseStopped
	case st.GetRunning() >= st.GetDesired(): // some may be outdated: the deployment says how far the update is
		return spec.PhaseRunning
	case completed > 0 && completed+st.GetRunning() >= st.GetDesired():
		if st.GetRunning() > 0 {
			return spec.PhaseRunning
		}
		return spec.PhaseCompleted
	case st.GetRunning() > 0:
		return spec.PhaseDegraded
	case st.GetFailed() > 0:
		return spec.PhaseFailed
	default:
		return spec.PhasePending
	}
}

// presentNode adds what only this server's memory holds.
func (s *Server) presentNode(snap *state.Snapshot, stored *v1.Node) *v1.Node {
	n := proto.CloneOf(stored)
	if n.Status == nil {
		n.Status = &v1.NodeStatus{}
	}
	s.nodes.Observe(n)
	n.Status.Requested = s.placement.Requested(snap, n.GetMetadata().GetUid())
	n.Status.Allocatable = s.placement.Allocatable(snap, n)
	n.Status.Departing = s.placement.Departing(snap, stored)
	return n
}
