package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// anyRebalance draws whether and how fast replicas that run are moved: half of the clusters do not. It has a random source
// of its own, so that the stories of old seeds stay the same.
func anyRebalance(seed uint64) *v1.Rebalance {
	c := rand.New(rand.NewPCG(seed, 0xba1a))
	if c.IntN(2) == 0 {
		return nil
	}
	return &v1.Rebalance{
		Enabled: true, Replicas: new(int32(1 + c.IntN(3))), Per: []string{"10s", "", "5m"}[c.IntN(3)],
		Rest: []string{"30s", "", "1m"}[c.IntN(3)], MinGain: new([]float64{0.01, 0.03, 0.1}[c.IntN(3)]),
	}
}

// moverOf is the replica that takes the place of another one, or nil.
func moverOf(snap *state.Snapshot, from *v1.Replica) *v1.Replica {
	for to := range snap.ReplicasOf(from.GetSpec().GetWorkloadUid()) {
		if of := to.GetSpec().GetReplaces(); of.GetCause() == placement.CauseMoved && of.GetReplicaUid() == from.GetMetadata().GetUid() && wanted(to) {
			return to
		}
	}
	return nil
}

// mayGo reports whether a replica need not stay where it is: its node must be left, or another one takes its place.
func (w *World) mayGo(p *proposal, after *state.Snapshot, r *v1.Replica) bool {
	return w.mustLeave(p.base, r) || moverOf(after, r) != nil
}

// beingMoved lists the uids of the replicas whose place others take, sorted.
func beingMoved(snap *state.Snapshot) (uids []string) {
	for to := range snap.Replicas("", "") {
		of := to.GetSpec().GetReplaces()
		if from := snap.Replica(of.GetReplicaUid()); of.GetCause() == placement.CauseMoved && wanted(to) && spec.Live(from.GetStatus().GetPhase()) && from != nil {
			uids = append(uids, of.GetReplicaUid())
		}
	}
	slices.Sort(uids)
	return slices.Compact(uids)
}

// checkMoves checks that replicas are moved for a gain, at the configured rate and from settled services, and that each serves
// until the one that takes its place does.
func (w *World) checkMoves(p *proposal, before, after *state.Snapshot) {
	if p.who != "replicas" {
		return
	}
	for _, change := range p.made() {
		r := change.GetPut().GetReplica()
		uid := r.GetMetadata().GetUid()
		old := p.base.Replica(uid)
		switch {
		case r == nil:
		case old == nil && r.GetSpec().GetReplaces().GetCause() == placement.CauseMoved && before.Replica(uid) == nil && after.Replica(uid) != nil:
			w.checkMove(p, r)
		case old != nil && wanted(old) && !wanted(r) && spec.Serves(old) && r.GetSpec().GetStopReason() != "" && !w.mustLeave(p.base, old) && r.GetSpec().GetPreemptedFor() == "":
			if to := moverOf(p.base, old); to != nil && !spec.Serves(to) {
				w.fail("a moved replica serves until another one does", "%s stops, and %s is %s", old.GetMetadata().GetName(), to.GetMetadata().GetName(), to.GetStatus().GetPhase())
			}
		}
	}
}

func (w *World) checkMove(p *proposal, to *v1.Replica) {
	limit := spec.RebalanceOf(p.base.Cluster().GetSpec())
	from := p.base.Replica(to.GetSpec().GetReplaces().GetReplicaUid())
	one := p.base.Workload(to.GetSpec().GetWorkloadUid())
	w.oracle.moves++
	w.note("%s moves from %s to %s", from.GetMetadata().GetName(), from.GetSpec().GetNode(), to.GetSpec().GetNode())
	if !limit.Enabled || from == nil || !wanted(from) {
		w.fail("only replicas that run are moved, if asked to", "%s", to.GetMetadata().GetName())
		return
	}
	// Settled: nothing else is going on with the service or in the cluster.
	serving := 0
	for r := range p.base.ReplicasOf(one.GetMetadata().GetUid()) {
		if wanted(r) && spec.Steady(r) && !placement.Away(p.base, r) && r.GetSpec().GetRevisionUid() == one.GetStatus().GetRevisionUid() {
			serving++
		}
	}
	if d := p.base.Deployment(one.GetStatus().GetDeploymentUid()); one.GetSpec().GetKind() != "" || one.GetSpec().GetSingleton() || recreates(p.base, one) ||
		spec.DeploymentOpen(d) || one.GetSpec().GetRestart().GetPolicy() != "always" || serving != int(spec.Replicas(one)) {
		w.fail("only replicas of settled services are moved", "%s of %s, of which %d of %d serve", from.GetMetadata().GetName(), one.GetMetadata().GetName(), serving, spec.Replicas(one))
	}
	for r := range p.base.ReplicasOn("") {
		if wanted(r) {
			w.fail("only replicas of settled services are moved", "%s moves while %s has no node", from.GetMetadata().GetName(), r.GetMetadata().GetName())
		}
	}
	// By a scheduler that knows nothing but the state.
	move, found := placement.NewModel(p.base).View.Rebalance(scheduler.Rebalancing{
		Replicas: []string{from.GetMetadata().GetUid()}, Leaving: beingMoved(p.base), MinGain: limit.MinGain,
	})
	if !found || move.Placement.Node != to.GetSpec().GetNodeUid() {
		w.fail("replicas are moved for a gain", "%s from %s to %s: %v, %s", from.GetMetadata().GetName(), from.GetSpec().GetNode(), to.GetSpec().GetNode(), found, move.Placement.NodeName)
	}
	now, last := p.tx.GetTime().AsTime(), from.GetMetadata().GetCreateTime().AsTime()
	if from.GetSpec().GetReplaces().GetCause() == placement.CauseMoved && !last.After(now) && now.Sub(last) < limit.Rest {
		w.fail("a moved replica rests", "%s moves again after %s of %s", from.GetMetadata().GetName(), now.Sub(last), limit.Rest)
	}
	w.checkMovePace(now, limit)
}

// checkMovePace checks the rate. The next leader has another clock, which may be wrong.
func (w *World) checkMovePace(now time.Time, limit spec.Rebalance) {
	all := &w.oracle.moved
	if all.by != w.leader || len(all.times) > 0 && now.Before(all.times[len(all.times)-1]) {
		*all = paced{by: w.leader}
	}
	all.times = slices.DeleteFunc(all.times, func(at time.Time) bool { return now.Sub(at) >= limit.Per })
	if all.times = append(all.times, now); len(all.times) > limit.Replicas {
		w.fail("replicas are moved at the configured rate", "%d were moved within %s, and %d may be", len(all.times), limit.Per, limit.Replicas)
	}
}

// movesEndWithin is after how long at most nothing is moved any more for a while, if nothing happens.
const movesEndWithin = 24 * time.Hour

// mislead sends replicas that are moved to other nodes with room.
func (w *World) mislead(snap *state.Snapshot, b *state.Batch) {
	for _, change := range b.Transaction(w.clock()).GetChanges() {
		r := change.GetPut().GetReplica()
		from := snap.Replica(r.GetSpec().GetReplaces().GetReplicaUid())
		if r.GetSpec().GetReplaces().GetCause() != placement.CauseMoved || snap.Replica(r.GetMetadata().GetUid()) != nil {
			continue
		}
		need, _ := w.needsOf(snap, r.GetSpec().GetRevisionUid())
		one := snap.Workload(r.GetSpec().GetWorkloadUid())
		for n := range snap.Nodes("") {
			uid := n.GetMetadata().GetUid()
			if uid != from.GetSpec().GetNodeUid() && uid != r.GetSpec().GetNodeUid() && may(n, need) && w.hasRoom(snap, n, one, need, "") {
				r.Spec.NodeUid, r.Spec.Node = uid, n.GetMetadata().GetName()
				break
			}
		}
	}
}

// anyFailover draws how fast lost replicas are replaced: half of the clusters have no limit. It
// has a random source of its own, so that the stories of old seeds stay the same.
func anyFailover(seed uint64) *v1.Failover {
	c := rand.New(rand.NewPCG(seed, 0xfa11))
	if c.IntN(2) == 0 {
		return nil
	}
	return &v1.Failover{Replicas: new(int32(1 + c.IntN(4))), Per: []string{"1s", "", "1m", "10m"}[c.IntN(4)]}
}

// paced are the replacements of lost replicas that one leader made, by its own clock.
type paced struct {
	by    *term
	times []time.Time
}

// checkPace checks that a leader replaces no more lost replicas than the configuration allows.
// The next leader has another clock, which may be wrong.
func (w *World) checkPace(p *proposal, before, after *state.Snapshot) {
	limit := spec.FailoverOf(before.Cluster().GetSpec())
	if p.who != "replicas" || limit.Replicas == 0 {
		return
	}
	all := &w.oracle.paced
	now := p.tx.GetTime().AsTime()
	if all.by != w.leader || len(all.times) > 0 && now.Before(all.times[len(all.times)-1]) {
		*all = paced{by: w.leader}
	}
	all.times = slices.DeleteFunc(all.times, func(at time.Time) bool { return now.Sub(at) >= limit.Per })
	for _, change := range p.made() {
		r := change.GetPut().GetReplica()
		if uid := r.GetMetadata().GetUid(); r.GetSpec().GetReplaces().GetCause() == placement.CauseLost && before.Replica(uid) == nil && after.Replica(uid) != nil {
			all.times = append(all.times, now)
		}
	}
	if len(all.times) > limit.Replicas {
		w.fail("lost replicas are replaced at the configured rate", "%d were replaced within %s: %s", len(all.times), limit.Per, limit)
	}
}
