package server

import (
	"google.golang.org/grpc/codes"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/server/core"
	"github.com/cloudless/cloudless/internal/spec"
	"github.com/cloudless/cloudless/internal/state"
)

// Limits and defaults of the cluster's configuration. They are asked for what is
// new only: what is there already stays as it is.

// creatable refuses a workload beyond the limits. In a plan that makes several,
// more of them come before it.
func creatable(snap *state.Snapshot, w *v1.Workload, more int) error {
	most := spec.MostWorkloads(snap.Cluster().GetSpec())
	if snap.Count(state.KindWorkload)+more >= most {
		return core.Refuse(codes.ResourceExhausted, "workload %s is one too many: the cluster allows %d; delete one, or allow more with: cloudless cluster config set limits.workloads=%d",
			w.GetMetadata().GetName(), most, most+1)
	}
	return replicasWithin(snap, w, spec.Size(w.GetSpec()))
}

// replicasAllowed refuses more replicas than a workload may have, unless it had
// as many before.
func replicasAllowed(snap *state.Snapshot, old *v1.Workload, wished int32) error {
	if wished <= spec.Size(old.GetSpec()) {
		return nil
	}
	return replicasWithin(snap, old, wished)
}

func replicasWithin(snap *state.Snapshot, w *v1.Workload, wished int32) error {
	most := spec.MostReplicas(snap.Cluster().GetSpec())
	if int(wished) > most {
		return core.Refuse(codes.ResourceExhausted, "workload %s asks for %d replicas, and the cluster allows %d for one workload; ask for fewer, or allow more with: cloudless cluster config set limits.replicasPerWorkload=%d",
			w.GetMetadata().GetName(), wished, most, wished)
	}
	return nil
}

// nodeAllowed refuses a node beyond the limit.
func nodeAllowed(snap *state.Snapshot, coming int) error {
	most := spec.MostNodes(snap.Cluster().GetSpec())
	if snap.Count(state.KindNode)+coming < most {
		return nil
	}
	return core.Refuse(codes.ResourceExhausted, "the cluster has %d nodes and allows no more; remove one with: cloudless node rm NAME, or allow more with: cloudless cluster config set limits.nodes=%d", most, most+1)
}
