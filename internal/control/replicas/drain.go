package replicas

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/services"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A draining node takes nothing new, and its replicas leave it:
//
// - A replica of a service leaves when its replacement serves. If no node has room for one, it
// leaves only if its workload keeps its minAvailable without it, or if the drain is forced.
// - A replica of which there must not be two at a time, because its workload recreates its
// replicas, is stopped first.
// - Work that ends by itself may finish until the deadline. Then it starts again elsewhere.
// - Replicas of daemons leave last, when nothing else is on the node.
//
// A machine that announces that it shuts down or sleeps drains, too, but only replicas of which
// replacements serve leave it: stopping the others would only end them earlier.

// obeyDrain lets a replica leave its node if the node drains. A replica that should be covered
// first is marked to leave; obeyDrain then returns the reason.
func (t *tick) obeyDrain(w *v1.Workload, r *v1.Replica, one *rollout.Replica) (why string) {
	n := t.snap.Node(r.GetSpec().GetNodeUid())
	if !spec.Drains(n) || one.Desired == spec.DesiredStopped || one.Away || one.Leaves || spec.Ended(one.Phase) {
		return ""
	}
	drain := n.GetSpec().GetDrain()
	operator := n.GetSpec().GetAvailability() == spec.AvailabilityDraining
	leaves := departure{replica: r, event: "Drained", why: drainReason(n), grace: drain.GetGrace(), voluntary: !drain.GetForce()}
	switch kind := w.GetSpec().GetKind(); {
	case !operator && (kind == spec.KindDaemon || kind == spec.KindJob || w.GetSpec().GetRestart().GetPolicy() != rollout.PolicyAlways ||
		placement.UpdateOf(w, int(spec.Replicas(w))).Recreate):
		return ""
	case kind == spec.KindDaemon:
		if !t.onlyDaemonsOn(n.GetMetadata().GetUid()) {
			return ""
		}
	case kind == spec.KindJob || w.GetSpec().GetRestart().GetPolicy() != rollout.PolicyAlways:
		if !t.mayFinishUntil(w, drain.GetDeadline()) {
			return ""
		}
	case placement.UpdateOf(w, int(spec.Replicas(w))).Recreate:
		if one.Serves && leaves.voluntary && t.spare(w) == 0 {
			return ""
		}
	default:
		one.Leaves, leaves.coveredOnly = true, !operator
		t.departures[w.GetMetadata().GetUid()] = append(t.departures[w.GetMetadata().GetUid()], leaves)
		return n.GetMetadata().GetName() + " is being drained"
	}
	t.evict(leaves)
	one.Desired = spec.DesiredStopped
	return ""
}

// mayFinishUntil reports whether the time is over in which work that ends by itself may finish.
// If not, the workload is due then.
func (t *tick) mayFinishUntil(w *v1.Workload, deadline *timestamppb.Timestamp) (over bool) {
	if deadline == nil {
		return false
	}
	if at := deadline.AsTime(); t.now.Before(at) {
		t.later(w.GetMetadata().GetUid(), at)
		return false
	}
	return true
}

// drainReason says why the replicas of a draining node leave.
func drainReason(n *v1.Node) string {
	why := fmt.Sprintf("node %s is being drained", n.GetMetadata().GetName())
	if reason := n.GetStatus().GetReason(); reason != "" {
		why += ": " + reason
	}
	return why
}

// onlyDaemonsOn reports whether no replica is on a node but those of daemons.
func (t *tick) onlyDaemonsOn(node string) bool {
	for r := range t.snap.ReplicasOn(node) {
		if spec.Live(r.GetStatus().GetPhase()) && t.snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetKind() != spec.KindDaemon {
			return false
		}
	}
	return true
}

// spare is how many more serving replicas of a service may be stopped in this tick for a reason
// that can wait.
func (t *tick) spare(w *v1.Workload) int {
	serving, idle := 0, services.Idle(t.snap, w)
	for r := range t.snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if placement.Wanted(r) && spec.Serves(r) && !placement.Away(t.snap, r) && !t.stopped[r.GetMetadata().GetUid()] && !idle(r) {
			serving++
		}
	}
	return rollout.Spare(serving, int(spec.Replicas(w)), int(w.GetSpec().GetMinAvailable()))
}

// departuresChanged reports whether the replicas of a node may have to leave it now, or may
// stay.
func departuresChanged(before, after *v1.Node) bool {
	return spec.Drains(before) != spec.Drains(after) || taintsChanged(before, after) ||
		spec.Drains(after) && !proto.Equal(before.GetSpec().GetDrain(), after.GetSpec().GetDrain())
}

// followDrains makes a draining node due when a replica on it has ended: its daemons may leave
// now, or it is empty.
func followDrains(snap *state.Snapshot, changes []state.Change, due *Due) {
	for _, c := range changes {
		before, _ := c.Old.(*v1.Replica)
		if before == nil || spec.Ended(before.GetStatus().GetPhase()) {
			continue
		}
		after, _ := c.New.(*v1.Replica)
		if node := before.GetSpec().GetNodeUid(); (after == nil || spec.Ended(after.GetStatus().GetPhase())) && spec.Drains(snap.Node(node)) {
			due.Nodes[node] = true
		}
	}
}

// finishDrains records which of the due nodes are empty.
func (t *tick) finishDrains(nodes map[string]bool) {
	for _, uid := range slices.Sorted(maps.Keys(nodes)) {
		old := t.snap.Node(uid)
		drain := old.GetSpec().GetDrain()
		if !spec.Drains(old) || drain == nil || drain.GetEndTime() != nil || t.occupied(uid) {
			continue
		}
		n := proto.CloneOf(old)
		n.Spec.Drain.EndTime = timestamppb.New(t.now)
		t.batch.Update(n, old.GetMetadata().GetVersion())
		took := t.now.Sub(drain.GetStartTime().AsTime()).Round(time.Second)
		t.event(n, "Drained", fmt.Sprintf("it is empty: %s left it in %s", spec.Count(int(drain.GetReplicas()), "replica"), took), state.SeverityInfo)
	}
}

func (t *tick) occupied(node string) bool {
	for r := range t.snap.ReplicasOn(node) {
		if spec.Live(r.GetStatus().GetPhase()) {
			return true
		}
	}
	return false
}
