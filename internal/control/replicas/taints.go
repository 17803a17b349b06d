package replicas

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/scheduler"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// A NoExecute taint evicts the replicas on its node: at once those that do not tolerate it,
// and after some seconds those that tolerate it for a time. A service that always runs
// keeps each of the latter until a replacement runs, if there is room elsewhere.

// departure is a replica that must leave its node.
type departure struct {
	replica *v1.Replica
	// event and why say in words what happens.
	event, why string
	// grace replaces the grace period of its workload, if it is not empty.
	grace string
	// voluntary is whether the replica stays where its workload could not keep its
	// minAvailable without it.
	voluntary bool
	// coveredOnly is whether the replica stays if there is no room for a replacement.
	coveredOnly bool
}

// expiry is when a replica has to leave its node because of a taint; because is nil if there
// is none. The time is zero if the taint is not tolerated or its start is unknown.
func (c *cluster) expiry(snap *state.Snapshot, r *v1.Replica) (at time.Time, because *v1.Taint, tolerated bool) {
	taints := snap.Node(r.GetSpec().GetNodeUid()).GetSpec().GetTaints()
	if !slices.ContainsFunc(taints, noExecute) {
		return at, nil, false
	}
	revision, err := c.Revision(snap, r.GetSpec().GetRevisionUid())
	if err != nil {
		return at, nil, false
	}
	for _, taint := range taints {
		seconds, forever := scheduler.Tolerates(revision.Needs.Tolerations, scheduler.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()})
		if !noExecute(taint) || forever {
			continue
		}
		until := taint.GetTime().AsTime().Add(time.Duration(seconds) * time.Second)
		if seconds == 0 || taint.GetTime() == nil {
			until = time.Time{}
		}
		if because == nil || until.Before(at) {
			at, because, tolerated = until, taint, seconds > 0
		}
	}
	return at, because, tolerated
}

func noExecute(t *v1.Taint) bool { return t.GetEffect() == scheduler.NoExecute }

// obeyTaints stops a replica that may not stay on its node. A replica that should be
// covered first is marked to leave; obeyTaints then returns the reason.
func (t *tick) obeyTaints(w *v1.Workload, r *v1.Replica, one *rollout.Replica) (why string) {
	if one.Desired == spec.DesiredStopped || one.Node == "" || one.Away || spec.Ended(one.Phase) {
		return ""
	}
	at, taint, tolerated := t.cluster.expiry(t.snap, r)
	workload := r.GetSpec().GetWorkloadUid()
	switch {
	case taint == nil:
		return ""
	case at.After(t.now):
		t.later(workload, at)
		return ""
	}
	named := scheduler.Taint{Key: taint.GetKey(), Value: taint.GetValue(), Effect: taint.GetEffect()}
	has := fmt.Sprintf("%s has the taint %s", r.GetSpec().GetNode(), named)
	// Work that ends by itself must not be done twice at the same time, and a daemon's
	// replica cannot go elsewhere.
	if tolerated && w.GetSpec().GetKind() != spec.KindDaemon && !w.GetSpec().GetSingleton() && w.GetSpec().GetRestart().GetPolicy() == rollout.PolicyAlways {
		one.Leaves = true
		t.departures[workload] = append(t.departures[workload], departure{
			replica: r, event: "Evicted", why: "node " + has + ", which it has tolerated for long enough",
		})
		return has
	}
	why = "node " + has + ", which it does not tolerate"
	if tolerated {
		why = "node " + has + ", which it has tolerated for long enough"
	}
	t.evict(departure{replica: r, event: "Evicted", why: why})
	one.Desired = spec.DesiredStopped
	return ""
}

// evict stops a replica that must leave its node.
func (t *tick) evict(d departure) {
	uid := d.replica.GetMetadata().GetUid()
	if !t.stopped[uid] && t.take(d.replica.GetSpec().GetWorkloadUid()) {
		t.stopped[uid] = true
		t.stopFor(d.replica, d.event, d.why, d.grace, "")
	}
}

// depart stops replicas that must leave their node and are not needed there any more.
func (t *tick) depart(workload string, uids []string) {
	for _, uid := range uids {
		list := t.departures[workload]
		if at := slices.IndexFunc(list, func(d departure) bool { return d.replica.GetMetadata().GetUid() == uid }); at >= 0 {
			t.evict(list[at])
			t.departures[workload] = slices.Delete(list, at, at+1)
		}
	}
}

// departUncovered stops a replica of a workload that must leave its node, after no cover found a
// place. Those that may not wait go first, because the others may then be needed. The workload is
// due then.
func (t *tick) departUncovered(workload string) {
	list := t.departures[workload]
	at := slices.IndexFunc(list, func(d departure) bool { return !d.voluntary && !d.coveredOnly })
	if at < 0 && t.spare(t.snap.Workload(workload)) > 0 {
		at = slices.IndexFunc(list, func(d departure) bool { return !d.coveredOnly })
	}
	if at < 0 {
		return
	}
	d := list[at]
	t.departures[workload] = slices.Delete(list, at, at+1)
	t.evict(d)
	t.left.Workloads[workload] = true
}

// taintsChanged reports whether a change of taints may evict replicas of the node or let them
// stay.
func taintsChanged(before, after *v1.Node) bool {
	count := 0
	for _, t := range after.GetSpec().GetTaints() {
		if noExecute(t) {
			count++
			if !slices.ContainsFunc(before.GetSpec().GetTaints(), func(o *v1.Taint) bool { return proto.Equal(o, t) }) {
				return true
			}
		}
	}
	for _, t := range before.GetSpec().GetTaints() {
		if noExecute(t) {
			count--
		}
	}
	return count != 0
}
