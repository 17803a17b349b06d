package replicas

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
)

// An update starts new replicas before it stops outdated ones, as far as they find a node. A
// new replica that finds none is not kept: it would only wait for the room of those that it
// replaces. If none of them would find a node, one outdated replica makes room instead.

// surge starts at most so many of the new replicas beside the outdated ones. If there is no node
// for any of them, the first outdated replica that can makes room. surge reports whether a new
// replica gets a node in one of these ways.
func (t *tick) surge(w *v1.Workload, replicas []*v1.Replica, most int, outdated []string, blocked bool) bool {
	uid := w.GetMetadata().GetUid()
	added := 0
	for _, r := range t.fitting(w, replicas) {
		if added == most || !t.take(uid) {
			return true
		}
		added++
		t.surging[r.GetMetadata().GetUid()] = true
		t.waits(r)
	}
	switch {
	case added > 0:
		return true
	case len(outdated) > 0:
		return t.replace(w, outdated)
	case len(replicas) > 0 || blocked:
		t.blocked(w) // none may make room
	}
	return false
}

// fitting are those of the new replicas that would find a node now without preempting others.
func (t *tick) fitting(w *v1.Workload, replicas []*v1.Replica) []*v1.Replica {
	if len(replicas) == 0 || t.awaitsSecret(w.GetStatus().GetRevisionUid()) != "" {
		return nil
	}
	revision, err := t.cluster.Revision(t.snap, w.GetStatus().GetRevisionUid())
	if err != nil {
		return nil
	}
	ask := placement.AskFor(revision, replicas, nil)
	ask.Modest = true
	placements := t.cluster.View.Plan(scheduler.Request{Asks: []scheduler.Ask{ask}}).Placements
	var fit []*v1.Replica
	for _, p := range placements {
		fit = append(fit, takeFor(&replicas, p))
	}
	return fit
}

// newReplicas are new replicas of a workload.
func (t *tick) newReplicas(w *v1.Workload, count int) (all []*v1.Replica) {
	for range count {
		all = append(all, t.newReplica(w))
	}
	return all
}

// dropSurge discards a new replica of an update for which another workload has taken the room,
// and reports whether it is one. Its workload is due again.
func (t *tick) dropSurge(r *v1.Replica) bool {
	if !t.surging[r.GetMetadata().GetUid()] {
		return false
	}
	uid := r.GetSpec().GetWorkloadUid()
	t.room.give(t.labelsOf(uid))
	t.crowdedOut = append(t.crowdedOut, uid)
	return true
}

// finishSurges makes the workloads due again whose new replicas found no node after all. That
// can only be because of other placements of this tick, without which trying again would not
// help.
func (t *tick) finishSurges() {
	for _, uid := range t.crowdedOut {
		if t.batch.Len() > 0 {
			t.left.Workloads[uid] = true
		} else {
			t.blocked(t.snap.Workload(uid))
		}
	}
}
