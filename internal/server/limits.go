package server

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
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
		return refuse(codes.ResourceExhausted, "workload %s is one too many: the cluster allows %d; delete one, or allow more with: cloudless cluster config set limits.workloads=%d",
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
		return refuse(codes.ResourceExhausted, "workload %s asks for %d replicas, and the cluster allows %d for one workload; ask for fewer, or allow more with: cloudless cluster config set limits.replicasPerWorkload=%d",
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
	return refuse(codes.ResourceExhausted, "the cluster has %d nodes and allows no more; remove one with: cloudless node rm NAME, or allow more with: cloudless cluster config set limits.nodes=%d", most, most+1)
}

// accept brings the workload of a request, which nobody else has, into canonical
// form, with the cluster's defaults where its author says nothing. The guard has
// found it valid, which it stays. Its status says whose defaults it has.
//
// A workload that is there already keeps the defaults that it was made with as
// long as its author changes nothing: to apply the same file again replaces
// nothing, whatever the defaults are by then.
func (s *Server) accept(w *v1.Workload) *v1.Workload {
	snap := s.store.Snapshot()
	cluster := snap.Cluster()
	defaults, number := cluster.GetSpec().GetDefaults(), cluster.GetStatus().GetConfiguration()
	old := snap.WorkloadByName(orDefault(w.GetMetadata().GetNamespace()), w.GetMetadata().GetName())
	if had := old.GetStatus().GetConfiguration(); old != nil && had != number && w.GetSpec() != nil {
		earlier := snap.Configuration(had).GetSpec().GetCluster().GetDefaults()
		if spec.ReplacesNone(spec.WithDefaults(w.GetSpec(), earlier), old.GetSpec()) {
			defaults, number = earlier, had
		}
	}
	if w.Spec != nil {
		spec.FillDefaults(w.Spec, defaults)
	}
	spec.Normalize(w)
	w.Status = &v1.WorkloadStatus{Configuration: number}
	return w
}

// withClusterDefaults is what the author of a new workload has given, and what
// the cluster has given it, for a plan to show.
func withClusterDefaults(snap *state.Snapshot, wanted wanted) *v1.Workload {
	defaults := snap.Configuration(wanted.workload.GetStatus().GetConfiguration()).GetSpec().GetCluster().GetDefaults()
	if defaults == nil {
		return wanted.given
	}
	with := proto.CloneOf(wanted.given)
	if with.Spec != nil {
		spec.FillDefaults(with.Spec, defaults)
	}
	return with
}

// creates is how many workloads a plan makes so far.
func (p *planned) creates() int {
	n := 0
	for _, change := range p.plan.GetChanges() {
		if change.GetAction() == actionCreate {
			n++
		}
	}
	return n
}
