package server

import (
	"cmp"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// countAtOnce is how many replicas are counted before others have their turn: whoever
// lists large workloads must not hold up those who write.
const countAtOnce = 256

// presentWorkload is a workload as the API shows it: what is stored, with a status
// that is derived from its replicas at this moment. explain adds why replicas
// are pending, node by node. All but the status is shared with what is stored.
func (s *Server) presentWorkload(snap *state.Snapshot, stored *v1.Workload, explain bool) *v1.Workload {
	st := &v1.WorkloadStatus{
		Revision: stored.GetStatus().GetRevision(), RevisionUid: stored.GetStatus().GetRevisionUid(),
		Desired: s.desired(snap, stored), Configuration: stored.GetStatus().GetConfiguration(),
		OwnerUid: stored.GetStatus().GetOwnerUid(), Owner: stored.GetStatus().GetOwner(),
	}
	w := &v1.Workload{
		ApiVersion: stored.GetApiVersion(), Kind: stored.GetKind(),
		Metadata: stored.GetMetadata(), Spec: stored.GetSpec(), Status: st,
	}
	var completed int32
	away := s.offlineOf(snap)
	gone := map[string]bool{} // nodes that are offline
	making := ""              // why room is being made
	waiting := 0              // those that were looked at and found no node
	seen := 0
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if seen++; seen%countAtOnce == 0 {
			runtime.Gosched()
		}
		outdated := r.GetSpec().GetRevisionUid() != st.GetRevisionUid()
		if outdated && spec.Ended(r.GetStatus().GetPhase()) {
			continue // how an older revision ended says nothing about this one
		}
		if away.have(r) {
			st.Pending++
			gone[r.GetSpec().GetNode()] = true
			continue
		}
		switch phase := r.GetStatus().GetPhase(); {
		case spec.Serves(r):
			st.Running++
		case phase == spec.PhasePending, phase == spec.PhasePlaced, phase == spec.PhasePreparing:
			st.Pending++
			if r.GetSpec().GetNodeUid() == "" && r.GetSpec().GetSucceeds() == "" && r.GetStatus().GetReason() != "" {
				waiting++
			}
			if r.GetSpec().GetReservedNodeUid() != "" {
				making = "replica " + r.GetMetadata().GetName() + " " + r.GetStatus().GetReason()
			}
		case phase == spec.PhaseBackoff:
			if outdated {
				break // it is about to be replaced
			}
			st.Failed++
			// A replica gives no reason for an end without failure, after which it should go on all the same.
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
	offline := strings.Join(slices.Sorted(maps.Keys(gone)), ", ")
	if offline != "" {
		st.Reason = "replicas on an offline node: " + offline
	}
	if making != "" {
		st.Reason = making
	}
	if st.Reason == "" && waiting > 0 && !explain {
		st.Reason = fmt.Sprintf("%d wait for a place: see: %s", waiting, spec.Hint(w.GetMetadata().GetNamespace(), "cloudless explain "+w.GetMetadata().GetName()))
	}
	st.Phase = phaseOf(w, completed)
	s.presentKind(snap, stored, w, completed)
	// What is over waits for nothing, though some of it may not be gone yet.
	if explain && st.Pending+st.Outdated > 0 && st.GetJob().GetOutcome() == "" {
		s.explainPending(snap, w, offline)
	}
	return w
}

// explainPending adds to a status why replicas wait, node by node. Some may be on
// nodes that are offline.
func (s *Server) explainPending(snap *state.Snapshot, w *v1.Workload, offline string) {
	st := w.GetStatus()
	st.Unplaced = s.placement.Explain(snap, w.GetMetadata().GetUid())
	st.Quota = s.placement.ShortOfQuota(snap, w.GetMetadata().GetUid())
	switch {
	case st.Quota != "":
		st.Reason = st.Quota
	case len(st.Unplaced) == 0:
	case offline != "":
		st.Reason = "node " + offline + " is offline, and no other node can take its replicas"
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
	case st.GetRunning() >= st.GetDesired() && st.GetOutdated() == 0:
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
	return n
}
