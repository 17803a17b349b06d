package sim

import (
	"slices"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// checkSuccession checks that a successor is placed when its predecessor has ended, and
// that no replica takes the room in between unless it may preempt.
func (w *World) checkSuccession(p *proposal, before, after *state.Snapshot) {
	if p.who != "replicas" {
		return
	}
	for _, change := range p.made() {
		r := change.GetPut().GetReplica()
		old := before.Replica(r.GetMetadata().GetUid())
		if r.GetSpec().GetNodeUid() == "" || old.GetSpec().GetNodeUid() != "" {
			continue
		}
		if waitsFor := before.Replica(old.GetSpec().GetSucceeds()); waitsFor != nil && !spec.Ended(waitsFor.GetStatus().GetPhase()) {
			w.fail("a successor waits for its predecessor", "%s is placed while %s is %s", r.GetMetadata().GetName(),
				waitsFor.GetMetadata().GetName(), waitsFor.GetStatus().GetPhase())
		}
		if priorityOf(after, r) <= 100 {
			w.checkInheritedRoom(p, r, before, after)
		}
	}
}

// checkInheritedRoom checks that a placement leaves room for replicas that have inherited room on
// that node and are not placed yet. A replica whose predecessor has ended since the plan
// was made is sure only of that one's room, and may need more. One that the plan leads elsewhere
// has given its room up, even if the commit leaves its own move out.
func (w *World) checkInheritedRoom(p *proposal, placed *v1.Replica, before, after *state.Snapshot) {
	node := placed.GetSpec().GetNodeUid()
	for heir := range after.ReplicasOn("") {
		from := p.base.Replica(heir.GetSpec().GetSucceeds())
		if !wanted(heir) || from.GetSpec().GetNodeUid() != node || !spec.Ended(from.GetStatus().GetPhase()) || from.GetSpec().GetStopReason() != "" || p.leavesOut(heir) {
			continue
		}
		if w.fitsBeside(before, heir, node) && !w.fitsBeside(after, heir, node) {
			w.fail("the room of a replaced replica is for its successor", "%s takes it on %s from %s", placed.GetMetadata().GetName(),
				placed.GetSpec().GetNode(), heir.GetMetadata().GetName())
		}
	}
}

// leavesOut reports whether the change of a replica was left out because something else had changed since the plan was made.
func (p *proposal) leavesOut(r *v1.Replica) bool {
	return slices.ContainsFunc(p.tx.GetChanges(), func(c *statev1.Change) bool {
		return c.GetPut().GetReplica().GetMetadata().GetUid() == r.GetMetadata().GetUid() && p.result.LeftOut[c.GetPart()] != nil
	})
}

// fitsBeside reports whether a node has room for one more replica.
func (w *World) fitsBeside(snap *state.Snapshot, more *v1.Replica, node string) bool {
	free := scheduler.NodeFromProto(snap.Node(node), spec.NodePolicy{}).Capacity
	take := func(r *v1.Replica) {
		if need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid()); ok {
			free[scheduler.CPU] -= need.Resources[scheduler.CPU]
			free[scheduler.Memory] -= need.Resources[scheduler.Memory]
		}
	}
	take(more)
	for r := range snap.ReplicasOn(node) {
		if !spec.Ended(r.GetStatus().GetPhase()) {
			take(r)
		}
	}
	return free[scheduler.CPU] >= 0 && free[scheduler.Memory] >= 0
}
