package placement

import (
	"cmp"
	"slices"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// ByUID lists the replicas of a workload, oldest first.
func ByUID(snap *state.Snapshot, workloadUID string) []*v1.Replica {
	return slices.SortedFunc(snap.ReplicasOf(workloadUID), func(a, b *v1.Replica) int {
		return cmp.Compare(a.GetMetadata().GetUid(), b.GetMetadata().GetUid())
	})
}

// Wanted reports whether a replica is alive and should not stop.
func Wanted(r *v1.Replica) bool {
	return spec.Live(r.GetStatus().GetPhase()) && r.GetSpec().GetDesired() != spec.DesiredStopped
}

// UIDsOf lists the uids of replicas.
func UIDsOf(replicas []*v1.Replica) (uids []string) {
	for _, r := range replicas {
		uids = append(uids, r.GetMetadata().GetUid())
	}
	return uids
}

// InputOf is a service and its replicas as input for package rollout.
func InputOf(w *v1.Workload, replicas []rollout.Replica) rollout.Input {
	return rollout.Input{
		Desired:  int(w.GetSpec().GetReplicas()),
		Revision: w.GetStatus().GetRevisionUid(),
		Policy:   w.GetSpec().GetRestart().GetPolicy(),
		Deleting: w.GetMetadata().GetDeleteTime() != nil,
		Replicas: replicas,
	}
}

// JobOf reads a job without its replicas.
func JobOf(snap *state.Snapshot, w *v1.Workload) rollout.Job {
	completions, parallelism, retries, deadline := spec.JobOf(w.GetSpec())
	first, longest := spec.BackoffOf(w.GetSpec())
	job := rollout.Job{
		Completions: completions, Parallelism: parallelism, Retries: retries, Backoff: first, MaxBackoff: longest,
		Revision: w.GetStatus().GetRevisionUid(), Deleting: w.GetMetadata().GetDeleteTime() != nil, Outcome: rollout.Outcome(w),
	}
	if began := snap.Revision(job.Revision).GetMetadata().GetCreateTime(); deadline > 0 && began != nil {
		job.Deadline = began.AsTime().Add(deadline)
	}
	return job
}
