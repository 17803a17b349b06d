package server

import (
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// The limits of the cluster's configuration. They apply to new objects and new replicas
// only: what exists already stays.

// checkCreate refuses a workload that exceeds the limits. The transaction has already
// created that many other workloads.
func checkCreate(snap *state.Snapshot, w *v1.Workload, created int) error {
	most := spec.MostWorkloads(snap.Cluster().GetSpec())
	if snap.Count(state.KindWorkload)+created >= most {
		return core.Refuse(codes.ResourceExhausted, "workload %s is one too many: the cluster allows %d; delete one, or allow more with: cloudless cluster config set limits.workloads=%d",
			w.GetMetadata().GetName(), most, most+1)
	}
	return checkReplicaLimit(snap, w, spec.Size(w.GetSpec()))
}

// checkReplicas refuses more replicas than a workload may have, unless the workload already
// has that many.
func checkReplicas(snap *state.Snapshot, old *v1.Workload, requested int32) error {
	if requested <= spec.Size(old.GetSpec()) {
		return nil
	}
	return checkReplicaLimit(snap, old, requested)
}

func checkReplicaLimit(snap *state.Snapshot, w *v1.Workload, requested int32) error {
	most := spec.MostReplicas(snap.Cluster().GetSpec())
	if int(requested) > most {
		return core.Refuse(codes.ResourceExhausted, "workload %s asks for %d replicas, and the cluster allows %d for one workload; ask for fewer, or allow more with: cloudless cluster config set limits.replicasPerWorkload=%d",
			w.GetMetadata().GetName(), requested, most, requested)
	}
	return nil
}
