package placement

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/secret"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Unmet says which of the workloads that w depends on is not as w needs it: what w waits for, or
// why it waits in vain. Both are empty if all are.
func Unmet(snap *state.Snapshot, w *v1.Workload) (waiting, failure string) {
	dependsOn := w.GetSpec().GetDependsOn()
	for _, name := range slices.Sorted(maps.Keys(dependsOn)) {
		other := snap.WorkloadByName(w.GetMetadata().GetNamespace(), name)
		switch need := dependsOn[name]; {
		case other == nil:
			return fmt.Sprintf("waits until workload %s exists and is %s", name, need), ""
		case need == spec.DependsCompleted && rollout.Outcome(other) == spec.PhaseFailed:
			return "", fmt.Sprintf("job %s, on which it depends, has failed; see: %s", name, spec.Hint(w.GetMetadata().GetNamespace(), "cloudless logs "+name))
		case need == spec.DependsCompleted && rollout.Outcome(other) != spec.PhaseCompleted:
			return fmt.Sprintf("waits until job %s has completed", name), ""
		case need == spec.DependsReady && !ready(snap, other):
			return fmt.Sprintf("waits until workload %s is ready", name), ""
		}
	}
	return "", ""
}

// AwaitsSecret says which secret keeps new replicas of a revision from starting, why, and what helps. It is empty if none
// does. The revision may be nil.
func AwaitsSecret(snap *state.Snapshot, revision *v1.Revision, now time.Time) string {
	if len(revision.GetSpec().GetWorkload().GetSecrets()) == 0 {
		return "" // nearly always
	}
	w := snap.Workload(revision.GetSpec().GetWorkloadUid())
	if w == nil || w.GetMetadata().GetDeleteTime() != nil {
		return ""
	}
	return secret.Waits(snap, w, revision, now)
}

// ready reports whether a service or daemon is rolled out and all its replicas serve. A service that sleeps is ready: the
// first request wakes it.
func ready(snap *state.Snapshot, w *v1.Workload) bool {
	d := snap.Deployment(w.GetStatus().GetDeploymentUid())
	if spec.DeploymentOpen(d) || spec.Waits(w, d) || w.GetMetadata().GetDeleteTime() != nil {
		return false
	}
	if spec.Asleep(w) {
		return true
	}
	all, serving := 0, 0
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if !Wanted(r) || r.GetSpec().GetRevisionUid() != w.GetStatus().GetRevisionUid() {
			continue
		}
		if all++; spec.Serves(r) && !Away(snap, r) {
			serving++
		}
	}
	if w.GetSpec().GetKind() == spec.KindDaemon {
		return serving > 0 && serving == all
	}
	return serving > 0 && serving >= int(spec.Replicas(w))
}
