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
		Desired:  int(spec.Replicas(w)),
		Revision: w.GetStatus().GetRevisionUid(),
		Policy:   w.GetSpec().GetRestart().GetPolicy(),
		Deleting: w.GetMetadata().GetDeleteTime() != nil,
		Update:   UpdateOf(w, int(spec.Replicas(w))),
		Replicas: replicas,
	}
}

// UpdateOf is how a workload replaces its outdated replicas. Work that ends by itself must not
// be done twice at the same time, so its replicas are stopped first.
func UpdateOf(w *v1.Workload, desired int) rollout.Update {
	u := rollout.Update{MinAvailable: int(w.GetSpec().GetMinAvailable()), Single: w.GetSpec().GetSingleton()}
	switch strategy := spec.StrategyOf(w.GetSpec()); {
	case strategy == spec.StrategyRecreate:
		u.Recreate = true
	case w.GetSpec().GetRestart().GetPolicy() != rollout.PolicyAlways:
	case strategy == spec.StrategyBlueGreen:
		u.Surge = desired
	default:
		u.Surge = spec.SurgeOf(w.GetSpec(), desired)
	}
	return u
}

// JobOf reads a job without its replicas.
func JobOf(snap *state.Snapshot, w *v1.Workload) rollout.Job {
	completions, parallelism, retries, deadline := spec.JobOf(w.GetSpec())
	first, longest := spec.BackoffOf(w.GetSpec())
	job := rollout.Job{
		Completions: completions, Parallelism: parallelism, Retries: retries, Backoff: first, MaxBackoff: longest,
		Revision: w.GetStatus().GetRevisionUid(), Deleting: w.GetMetadata().GetDeleteTime() != nil, Outcome: rollout.Outcome(w),
		Once: spec.IsRelease(w),
	}
	if began := snap.Revision(job.Revision).GetMetadata().GetCreateTime(); deadline > 0 && began != nil {
		job.Deadline = began.AsTime().Add(deadline)
	}
	return job
}
