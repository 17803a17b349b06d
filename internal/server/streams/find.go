package streams

import (
	"cmp"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/server/notfound"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// replicaRequest is a request that names a workload, and may name one of its replicas.
type replicaRequest interface {
	GetNamespace() string
	GetWorkload() string
	GetReplica() string
}

// running finds a running replica in a state.
func running(request replicaRequest) func(*state.Snapshot) (*v1.Replica, error) {
	return func(snap *state.Snapshot) (*v1.Replica, error) { return RunningReplica(snap, request) }
}

// RunningReplica returns the requested replica, or any running one of the workload. The
// error says why there is none.
func RunningReplica(snap *state.Snapshot, request replicaRequest) (*v1.Replica, error) {
	namespace := cmp.Or(request.GetNamespace(), spec.DefaultNamespace)
	workload, replica := resolve(snap, namespace, request)
	w := snap.WorkloadByName(namespace, workload)
	if w == nil {
		return nil, notfound.Workload(snap, namespace, workload)
	}
	var unready, other *v1.Replica
	for r := range snap.ReplicasOf(w.GetMetadata().GetUid()) {
		if replica != "" && replica != r.GetMetadata().GetName() {
			continue
		}
		switch {
		case spec.Serves(r):
			return r, nil
		case r.GetStatus().GetPhase() == spec.PhaseRunning:
			unready = r
		}
		// A replica that may still run explains more than one that has ended.
		if other == nil || spec.Ended(other.GetStatus().GetPhase()) {
			other = r
		}
	}
	switch {
	case unready != nil:
		return unready, nil
	case other != nil:
		return nil, core.Refuse(codes.FailedPrecondition, "no replica of %s is running: %s is in phase %s%s; see: %s",
			workload, other.GetMetadata().GetName(), other.GetStatus().GetPhase(), because(other), spec.Hint(namespace, "cloudless ps --all"))
	case replica != "":
		return nil, notfound.Replica(snap, w, replica)
	default:
		return nil, core.Refuse(codes.FailedPrecondition, "workload %s has no replicas; scale it up with: %s", workload, spec.Hint(namespace, "cloudless workload scale "+workload+" 1"))
	}
}

// resolve returns the workload and the replica that a request names. Callers may name a
// replica in place of a workload.
func resolve(snap *state.Snapshot, namespace string, request replicaRequest) (workload, replica string) {
	workload, replica = request.GetWorkload(), request.GetReplica()
	if replica != "" || snap.WorkloadByName(namespace, workload) != nil {
		return workload, replica
	}
	if r := snap.ReplicaByName(namespace, workload); r != nil {
		return r.GetSpec().GetWorkload(), workload
	}
	return workload, ""
}

// because says why a replica does not run, if that is known.
func because(r *v1.Replica) string {
	status := r.GetStatus()
	switch exit := status.GetLastExit(); {
	case status.GetReason() != "":
		return " (" + strings.TrimRight(status.GetReason(), ".") + ")"
	case spec.ExitReason(exit) != "":
		return " (" + spec.ExitReason(exit) + ")"
	case exit != nil:
		return fmt.Sprintf(" (it ended with exit code %d)", exit.GetCode())
	}
	return ""
}
