package replicas

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/control/placement"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// coversWork reports whether a new replica covers one on an offline node and its work ends
// by itself. Such work must not be done twice.
func (t *tick) coversWork(r *v1.Replica) bool {
	s := t.snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec()
	waited := t.snap.Replica(r.GetSpec().GetReplaces().GetReplicaUid()) // in vain, for its node to come back
	covers := t.covers[r.GetMetadata().GetUid()] != "" || placement.Held(r) && placement.Away(t.snap, waited)
	return covers && (s.GetKind() == spec.KindJob || s.GetRestart().GetPolicy() != rollout.PolicyAlways)
}

// waitsForNode sets whether a replica that is away is not covered yet, because its workload
// waits for the node. The workload is due when that ends.
func (t *tick) waitsForNode(w *v1.Workload, r *v1.Replica, one *rollout.Replica) {
	at := placement.LostAt(t.snap, w, r)
	if one.Patient = t.now.Before(at); one.Patient {
		t.later(w.GetMetadata().GetUid(), at)
	}
}

// maxAway is how many replicas on offline nodes are checked one by one.
const maxAway = 1024

// checkAway adds a check that no replica of the workload on an offline node has ended: an
// agent that comes back reports the outcome of its replicas at once. If there are too many
// of them, it checks that no replica of the workload has ended at all.
func (t *tick) checkAway(workloadUID string) {
	var away []*v1.Replica
	for r := range t.snap.ReplicasOf(workloadUID) {
		if placement.Wanted(r) && placement.Away(t.snap, r) {
			away = append(away, r)
		}
	}
	if len(away) > maxAway {
		t.batch.Check(state.KindMark, workloadUID, t.snap.MarkVersion(workloadUID))
		return
	}
	for _, r := range away {
		t.batch.Check(state.KindReplica, r.GetMetadata().GetUid(), r.GetMetadata().GetVersion())
	}
}
