package replicas

import (
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// coversWork reports whether a new replica is to do the work of one that is away, and
// that work ends by itself: then it is not to be done twice.
func (t *tick) coversWork(r *v1.Replica) bool {
	s := t.snap.Workload(r.GetSpec().GetWorkloadUid()).GetSpec()
	return t.covers[r.GetMetadata().GetUid()] != "" && (s.GetKind() == spec.KindJob || s.GetRestart().GetPolicy() != rollout.PolicyAlways)
}

// maxAway is how many replicas that are away are checked one by one.
const maxAway = 1024

// checkAway adds a check that no replica of a workload that is away has ended: an agent
// that is back reports at once what became of its replicas. If there are very many of them,
// it checks that nothing of the workload has ended at all.
func (t *tick) checkAway(workloadUID string) {
	var away []*v1.Replica
	for r := range t.snap.ReplicasOf(workloadUID) {
		if wanted(r) && Away(t.snap, r) {
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
