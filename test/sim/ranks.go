package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// rank draws a workload's priority, minAvailable and tolerations.
func rank(c *rand.Rand, s *v1.WorkloadSpec) {
	if c.IntN(2) == 0 {
		s.Priority = proto.Int32([]int32{0, 50, 101, 300, 600, 950}[c.IntN(6)])
	}
	if c.IntN(4) == 0 {
		s.MinAvailable = int32(c.IntN(3))
	}
	if c.IntN(4) == 0 {
		if s.Placement == nil {
			s.Placement = &v1.Placement{}
		}
		s.Placement.Tolerations = append(s.Placement.Tolerations, &v1.Toleration{Key: "out", Seconds: []int64{0, 20, 300}[c.IntN(3)]})
	}
}

// actTaint sets a taint of a node, or removes it.
func (w *World) actTaint(c *rand.Rand) {
	m := w.machine(c)
	if m == nil {
		return
	}
	uid, effect := m.uid, []string{scheduler.NoExecute, scheduler.NoExecute, scheduler.NoSchedule, scheduler.PreferNoSchedule, "", "", "", ""}[c.IntN(8)]
	w.operate("taint "+m.name+" "+effect, func(_ *server, snap *state.Snapshot, b *state.Batch) bool {
		old := snap.Node(uid)
		if old == nil || effect == "" && len(old.GetSpec().GetTaints()) == 0 {
			return false
		}
		n := proto.CloneOf(old)
		n.Spec.Taints = nil
		if effect != "" {
			n.Spec.Taints = []*v1.Taint{{Key: "out", Effect: effect, Time: timestamppb.New(w.clock())}}
		}
		b.Update(n, old.GetMetadata().GetVersion())
		return true
	}, nil)
}

// bears is until when a replica may be on a node with its taints, and whether that ends.
func bears(n *v1.Node, need needs) (until time.Time, ends bool) {
	for _, t := range n.GetSpec().GetTaints() {
		seconds, forever := scheduler.Tolerates(need.Tolerations, scheduler.Taint{Key: t.GetKey(), Value: t.GetValue(), Effect: t.GetEffect()})
		if t.GetEffect() != scheduler.NoExecute || forever {
			continue
		}
		if at := t.GetTime().AsTime().Add(time.Duration(seconds) * time.Second); !ends || at.Before(until) {
			until, ends = at, true
		}
	}
	return until, ends
}

// mustLeave reports whether a replica has to leave its node sooner or later.
func (w *World) mustLeave(snap *state.Snapshot, r *v1.Replica) bool {
	need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid())
	if !ok {
		return false
	}
	n := snap.Node(r.GetSpec().GetNodeUid())
	_, ends := bears(n, need)
	return ends || spec.Drains(n)
}

func priorityOf(snap *state.Snapshot, r *v1.Replica) int32 {
	return spec.PriorityOf(snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec())
}

func classOf(priority int32) int {
	return slices.IndexFunc([]int32{100, 500, 900, 1000}, func(most int32) bool { return priority <= most })
}

// checkPreempted checks that a replica is preempted only for a waiting one with a priority
// above 100 and above its own, and that its service keeps its minAvailable.
func (w *World) checkPreempted(p *proposal, old, now *v1.Replica, before, after *state.Snapshot) {
	name := now.GetMetadata().GetName()
	by := after.Replica(now.GetSpec().GetPreemptedFor())
	mine, other := priorityOf(after, now), priorityOf(after, by)
	if other <= 100 || mine >= other {
		w.fail("only a more important replica preempts others", "%s: %s of priority %d for %s of %d", p.who, name, mine, by.GetMetadata().GetName(), other)
	}
	if by.GetSpec().GetReservedNodeUid() != now.GetSpec().GetNodeUid() || by.GetStatus().GetPhase() != spec.PhasePending {
		w.fail("no replica is preempted in vain", "%s: %s for %s, which is %s", p.who, name, by.GetMetadata().GetName(), by.GetStatus().GetPhase())
	}
	if len(p.result.LeftOut) == 0 {
		w.checkRoomIsMade(p, after, now.GetSpec().GetNodeUid())
	}
	if !spec.Serves(old) || classOf(mine) != classOf(other) {
		return
	}
	left := 0
	for r := range after.ReplicasOf(now.GetSpec().GetWorkloadUid()) {
		if wanted(r) && spec.Serves(r) && !placement.Away(before, r) {
			left++
		}
	}
	if keeps := after.Workload(now.GetSpec().GetWorkloadUid()).GetSpec().GetMinAvailable(); left < int(keeps) {
		w.fail("a service keeps its minAvailable", "%s: %s goes, %d are left and %d should stay", p.who, name, left, keeps)
	}
}

// checkRoomIsMade checks that a replica that waits for room on a node has it when the
// victims have ended.
func (w *World) checkRoomIsMade(p *proposal, snap *state.Snapshot, node string) {
	free := scheduler.NodeFromProto(snap.Node(node), spec.NodePolicy{}).Capacity
	count := func(r *v1.Replica) {
		if need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid()); ok {
			free[scheduler.CPU] -= need.Resources[scheduler.CPU]
			free[scheduler.Memory] -= need.Resources[scheduler.Memory]
		}
	}
	for r := range snap.ReplicasOn(node) {
		if wanted(r) {
			count(r)
		}
	}
	for r := range snap.ReplicasOn("") {
		if wanted(r) && r.GetSpec().GetReservedNodeUid() == node {
			count(r)
		}
	}
	if free[scheduler.CPU] < 0 || free[scheduler.Memory] < 0 {
		w.fail("no replica is preempted in vain", "%s: on %s is not enough room for all that wait for it: %v", p.who, snap.Node(node).GetMetadata().GetName(), free)
	}
}

// checkEvicted checks that a replica is evicted only by a taint that its node has.
func (w *World) checkEvicted(p *proposal, r *v1.Replica, before *state.Snapshot) {
	if !w.mustLeave(before, r) && !w.mustLeave(p.base, r) && moverOf(p.base, r) == nil {
		w.fail("a replica is lost only for a reason", "%s has %s leave %s, which has no taint that it does not bear", p.who,
			r.GetMetadata().GetName(), r.GetSpec().GetNode())
	}
}

// overstays reports whether a replica is where a taint does not let it stay.
func (w *World) overstays(snap *state.Snapshot, r *v1.Replica) bool {
	n := snap.Node(r.GetSpec().GetNodeUid())
	need, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid())
	if !ok || n == nil || n.GetStatus().GetState() == "offline" {
		return false
	}
	until, ends := bears(n, need)
	return ends && until.Before(w.clock())
}

// couldPush reports whether a workload would have room on some node if all less important
// replicas left that may.
func (w *World) couldPush(snap *state.Snapshot, one *v1.Workload) bool {
	need, ok := w.needsOf(snap, one.GetStatus().GetRevisionUid())
	mine := one.GetSpec().GetPriority()
	if !ok || mine <= 100 || len(need.Ports) > 0 || !w.withinQuota(snap, one, need, "") {
		return false
	}
	for n := range snap.Nodes("") {
		if !may(n, need) {
			continue
		}
		free := scheduler.NodeFromProto(n, spec.NodePolicy{}).Capacity
		for r := range snap.ReplicasOn(n.GetMetadata().GetUid()) {
			other := priorityOf(snap, r)
			stays := snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec().GetMinAvailable() > 0 && classOf(other) == classOf(mine)
			if other >= mine || stays {
				if has, ok := w.needsOf(snap, r.GetSpec().GetRevisionUid()); ok && spec.Live(r.GetStatus().GetPhase()) {
					free[scheduler.CPU] -= has.Resources[scheduler.CPU]
					free[scheduler.Memory] -= has.Resources[scheduler.Memory]
				}
			}
		}
		if need.Resources[scheduler.CPU] <= free[scheduler.CPU] && need.Resources[scheduler.Memory] <= free[scheduler.Memory] {
			return true
		}
	}
	return false
}

// comparePreemptions compares the planned preemptions with the real ones. Programs take no time in a
// plan. Where they do, a waiting replica may take room for a moment and change places with another
// one of its workload, which loses nothing.
func (w *World) comparePreemptions(before *state.Snapshot, planned []*v1.Preemption) {
	shown, gone := map[string]bool{}, map[string]bool{}
	for _, p := range planned {
		shown[p.GetReplica()] = true
	}
	for r := range w.newest().Replicas("", "") {
		if was := before.Replica(r.GetMetadata().GetUid()); was != nil && was.GetSpec().GetPreemptedFor() == "" && r.GetSpec().GetPreemptedFor() != "" {
			if name := r.GetMetadata().GetName(); shown[name] || placesOf(w.newest(), r) < placesOf(before, r) {
				gone[name] = true
			}
		}
	}
	if !maps.Equal(shown, gone) {
		w.fail("a plan comes true", "%v were planned to be preempted, and %v were",
			slices.Sorted(maps.Keys(shown)), slices.Sorted(maps.Keys(gone)))
	}
}

// placesOf counts the replicas of a replica's workload that have a node.
func placesOf(snap *state.Snapshot, of *v1.Replica) (count int) {
	for r := range snap.ReplicasOf(of.GetSpec().GetWorkloadUid()) {
		if wanted(r) && r.GetSpec().GetNodeUid() != "" {
			count++
		}
	}
	return count
}
