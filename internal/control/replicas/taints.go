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

// overdue is a replica whose toleration of a taint has expired.
type overdue struct {
	replica *v1.Replica
	why     string
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
// covered first counts as away until then; obeyTaints then returns the reason.
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
	if tolerated && w.GetSpec().GetKind() != spec.KindDaemon && w.GetSpec().GetRestart().GetPolicy() == rollout.PolicyAlways {
		one.Away = true
		t.overdue[workload] = append(t.overdue[workload], overdue{replica: r, why: "node " + has + ", which it has tolerated for long enough"})
		return has
	}
	why = "node " + has + ", which it does not tolerate"
	if tolerated {
		why = "node " + has + ", which it has tolerated for long enough"
	}
	t.evict(r, why)
	one.Desired = spec.DesiredStopped
	return ""
}

func (t *tick) evict(r *v1.Replica, why string) {
	if !t.stopped[r.GetMetadata().GetUid()] && t.take(r.GetSpec().GetWorkloadUid()) {
		t.stopped[r.GetMetadata().GetUid()] = true
		t.stopFor(r, "Evicted", why, "")
	}
}

// evictOverdue stops a covered replica, if it must leave because of a taint.
func (t *tick) evictOverdue(r *v1.Replica) bool {
	list := t.overdue[r.GetSpec().GetWorkloadUid()]
	at := slices.IndexFunc(list, func(o overdue) bool { return o.replica.GetMetadata().GetUid() == r.GetMetadata().GetUid() })
	if at < 0 {
		return false
	}
	t.evict(r, list[at].why)
	t.overdue[r.GetSpec().GetWorkloadUid()] = slices.Delete(list, at, at+1)
	return true
}

// evictUncovered stops the first replica that must leave because of a taint, after no cover
// found a place. Its workload is due then.
func (t *tick) evictUncovered(workload string) {
	if list := t.overdue[workload]; len(list) > 0 {
		t.overdue[workload] = list[1:]
		t.evict(list[0].replica, list[0].why)
		t.left.Workloads[workload] = true
	}
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
