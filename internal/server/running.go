package server

import (
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/rollout"
	"github.com/cloudless/cloudless/internal/state"
)

// inReplica is a request for something inside a running replica: the named one,
// or any that runs.
type inReplica interface {
	GetNamespace() string
	GetWorkload() string
	GetReplica() string
}

// runningReplica finds the replica that is meant, or says why there is none.
func runningReplica(snap *state.Snapshot, wanted inReplica) (*v1.Replica, error) {
	namespace := orDefault(wanted.GetNamespace())
	w := snap.WorkloadByName(namespace, wanted.GetWorkload())
	if w == nil {
		return nil, missingWorkload(snap, namespace, wanted.GetWorkload())
	}
	var other *v1.Replica
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if wanted.GetReplica() != "" && wanted.GetReplica() != r.GetMetadata().GetName() {
			continue
		}
		if r.GetStatus().GetPhase() == rollout.PhaseRunning {
			return r, nil
		}
		// One that may run yet says more than one that has ended.
		if other == nil || rollout.Ended(other.GetStatus().GetPhase()) {
			other = r
		}
	}
	switch {
	case other != nil:
		return nil, refuse(codes.FailedPrecondition, "no replica of %s is running: %s is in phase %s%s; see: cloudless ps --all",
			wanted.GetWorkload(), other.GetMetadata().GetName(), other.GetStatus().GetPhase(), because(other))
	case wanted.GetReplica() != "":
		return nil, missingReplica(snap, w, wanted.GetReplica())
	default:
		return nil, refuse(codes.FailedPrecondition, "workload %s has no replicas; scale it up with: cloudless workload scale %s 1", wanted.GetWorkload(), wanted.GetWorkload())
	}
}

// because is why a replica does not run, as far as that is known.
func because(r *v1.Replica) string {
	status := r.GetStatus()
	switch exit := status.GetLastExit(); {
	case status.GetReason() != "":
		return " (" + strings.TrimRight(status.GetReason(), ".") + ")"
	case exit.GetOomKilled():
		return " (it ran out of memory)"
	case exit.GetReason() != "":
		return " (" + exit.GetReason() + ")"
	case exit != nil:
		return fmt.Sprintf(" (it ended with exit code %d)", exit.GetCode())
	}
	return ""
}
